// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"regexp"
	"slices"
	"strings"
)

// assignment is a variable with a value in an advice.
var assignment = regexp.MustCompile(`\b(NCCL_\w+)=(\w+)`)

// advise leaves out the parts of a finding's advice that set a variable to the value that it has already.
func (p *Process) advise(f *Finding) {
	var parts []string
	for part := range strings.SplitSeq(f.Next, "; ") {
		isSet := func(set []string) bool { return p.Environment[set[1]] == set[2] }
		if !slices.ContainsFunc(assignment.FindAllStringSubmatch(part, -1), isSet) {
			parts = append(parts, part)
		}
	}
	if len(parts) > 0 {
		f.Next = strings.TrimPrefix(strings.Join(parts, "; "), "or ")
	}
}
