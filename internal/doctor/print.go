// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Print writes the report as text.
func (r Report) Print(w io.Writer) {
	if r.Namespace == "" {
		fmt.Fprintf(w, "local run %s: %s", r.Environment, humanize.Count(len(r.Nodes), "node"))
	} else if fmt.Fprintf(w, "environment %s/%s", r.Namespace, r.Environment); len(r.Nodes) > 0 {
		fmt.Fprintf(w, ": %s, mode %s", humanize.Count(len(r.Nodes), "node"), cmp.Or(r.Mode, "unknown"))
	}
	if r.Holder != "" {
		fmt.Fprintf(w, "; %s", r.Holder)
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, n := range r.Nodes {
		fmt.Fprintf(table, "  node %d\t%s\t%s\tagent: %s\n", n.Node, n.Pod, n.State, n.Agent)
	}
	_ = table.Flush()
	for _, j := range r.Jobs {
		fmt.Fprintf(w, "  %s\n", j)
	}
	fmt.Fprintln(w)
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "nothing is wrong that can be seen from here")
	}
	for i, f := range r.Findings {
		fmt.Fprintf(w, "finding %d of %d: ", i+1, len(r.Findings))
		f.Print(w, string(f.Flow))
	}
}
