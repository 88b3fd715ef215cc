// SPDX-License-Identifier: Apache-2.0

package attachment

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRangesOf(t *testing.T) {
	tests := []struct {
		name, config string
		want         []string
		problem      string
	}{
		{"whereabouts", `{"type":"sriov","ipam":{"type":"whereabouts","range":"10.0.103.0/24"}}`, []string{"10.0.103.0/24: 254"}, ""},
		{"whereabouts, bounds apart",
			`{"ipam":{"type":"whereabouts","range":"10.0.103.0/24","range_start":"10.0.103.10","range_end":"10.0.103.20"}}`,
			[]string{"10.0.103.10 to 10.0.103.20 of 10.0.103.0/24: 11"}, ""},
		{"whereabouts, bounds within", `{"ipam":{"type":"whereabouts","range":"10.0.103.10-10.0.103.11/24"}}`,
			[]string{"10.0.103.10 to 10.0.103.11 of 10.0.103.0/24: 2"}, ""},
		{"whereabouts, two families", `{"ipam":{"type":"whereabouts","ipRanges":[{"range":"10.1.0.0/30"},{"range":"fd00::/64"}]}}`,
			[]string{"10.1.0.0/30: 2", "fd00::/64: 4294967295"}, ""},
		{"host-local", `{"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/29","rangeStart":"10.1.0.4"}]]}}`,
			[]string{"10.1.0.4 to 10.1.0.6 of 10.1.0.0/29: 3"}, ""},
		{"host-local, old", `{"ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`, []string{"10.1.0.0/29: 6"}, ""},
		{"a list of plugins", `{"plugins":[{"type":"sriov","ipam":{"type":"whereabouts","range":"10.0.103.0/24"}},{"type":"tuning"}]}`,
			[]string{"10.0.103.0/24: 254"}, ""},
		{"bounds in the wrong order",
			`{"ipam":{"type":"whereabouts","range":"10.0.103.0/24","range_start":"10.0.103.20","range_end":"10.0.103.10"}}`,
			[]string{"10.0.103.20 to 10.0.103.10 of 10.0.103.0/24: 0"}, ""},
		{"no ipam", `{"type":"sriov"}`, nil, "has no ipam"},
		{"another ipam", `{"ipam":{"type":"dhcp"}}`, nil, "ipam dhcp does not name its range here"},
		{"nothing", ``, nil, "is on the nodes"},
		{"no JSON", `{`, nil, "cannot be read"},
		{"no range", `{"ipam":{"type":"whereabouts","range":"10.0.103.0"}}`, nil, "its range 10.0.103.0 cannot be read"},
		{"no bound", `{"ipam":{"type":"whereabouts","range":"10.0.103.0/24","range_start":"ten"}}`, nil, "cannot be read"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			found, _, problem := RangesOf(test.config)
			var got []string
			for _, r := range found {
				got = append(got, fmt.Sprintf("%s: %d", r, r.Size()))
			}
			if diff := cmp.Diff(test.want, got); diff != "" || !strings.Contains(problem, test.problem) || (problem == "") != (test.problem == "") {
				t.Errorf("problem %q, want %q; (-want +got):\n%s", problem, test.problem, diff)
			}
		})
	}
}

// FuzzRangesOf: a configuration has ranges or a problem, and parsing the text of a range without bounds gives the same
// range.
func FuzzRangesOf(f *testing.F) {
	for _, config := range []string{
		`{"ipam":{"type":"whereabouts","range":"10.0.103.10-10.0.103.11/24"}}`,
		`{"ipam":{"type":"whereabouts","ipRanges":[{"range":"10.1.0.0/30"},{"range":"fd00::/64"}]}}`,
		`{"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/29","rangeStart":"10.1.0.4"}]]}}`,
		`{"plugins":[{},{"ipam":{"type":"dhcp"}}]}`,
		`{"ipam":{"range":"255.255.255.255/32"}}`, `{"ipam":{"range":"::/0","range_start":"::","range_end":"::ffff:ffff:ffff:ffff"}}`,
		`{"ipam":{"range":"10.0.0.0/8","range_end":"fd00::1"}}`,
	} {
		f.Add(config)
	}
	f.Fuzz(func(t *testing.T, config string) {
		ranges, _, problem := RangesOf(config)
		if (problem == "") != (len(ranges) > 0) {
			t.Fatalf("ranges %v and problem %q", ranges, problem)
		}
		for _, r := range ranges {
			if !r.Subnet.IsValid() || r.Size() > math.MaxUint32 {
				t.Errorf("range %s of subnet %s with %d addresses", r, r.Subnet, r.Size())
			}
			if !(Definition{Ranges: ranges}).Overlaps(Definition{Ranges: []Range{r}}) {
				t.Errorf("range %s does not overlap with itself", r)
			}
			if r == all(r.Subnet) {
				if again, err := parseRange(r.String(), "", ""); err != nil || again != r {
					t.Errorf("range %s is read as %s, %v", r, again, err)
				}
			}
		}
	})
}
