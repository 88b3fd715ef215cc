// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"strings"
	"sync"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

type explanation struct {
	// consequence: it follows from another failure.
	consequence bool
	cause, fix  string
}

// explanations returns the explanation of each reason in the table of docs/reference/nccl.md.
var explanations = sync.OnceValue(func() map[fail.Reason]explanation {
	all := map[fail.Reason]explanation{}
	_, table, _ := strings.Cut(mldevenv.NCCL, "| --- |\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		for i := range cells {
			cells[i] = strings.ReplaceAll(cells[i], `\|`, "|")
		}
		all[fail.Reason(cells[0])] = explanation{cause: cells[1], fix: cells[2], consequence: cells[3] == "yes"}
	}
	return all
})
