// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Print writes the measurements, the rails, and what was found. A quick check that passed was enough, so nobody needs its measurements.
func (r *Report) Print(w io.Writer) error {
	if !r.Quick {
		if err := r.printMeasurements(w); err != nil {
			return err
		}
	}
	if r.Network != nil {
		for _, rail := range r.Network.Rails {
			if rail.Channels > 0 {
				fmt.Fprintf(w, "%s on %s: %s, %s of channels\n", rail.Name, rail.Host, rail.Transport.DisplayName(),
					humanize.Count(rail.Channels, "end"))
			}
		}
	}
	for _, f := range r.Findings {
		f.Explained().Print(w)
	}
	return nil
}

// printMeasurements writes a table of the measurements, a line for each kind of device, and for each device that was not measured.
func (r *Report) printMeasurements(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "operation\tbetween\tsize\ttime\tbus bandwidth")
	for _, m := range r.Measurements {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", m.Operation, r.measured(m), humanize.Bytes(int64(m.Bytes)), m.Time.Round(100*time.Nanosecond),
			m.Bandwidth())
	}
	if len(r.Measurements) > 0 {
		if err := table.Flush(); err != nil {
			return err
		}
	}
	for _, kind := range r.DeviceKinds {
		fmt.Fprintln(w, kind.Describe())
	}
	for _, d := range r.Devices {
		if d.NotMeasured != "" {
			fmt.Fprintf(w, "rank %d of node %d, %s: not measured: %s\n", d.Rank, d.Node, d.Kind, humanize.OneLine(d.NotMeasured, 300))
		}
	}
	return nil
}

func (r *Report) measured(m Measurement) string {
	switch m.Scope {
	case InNode:
		return fmt.Sprintf("ranks of node %d", m.Node)
	case InPair:
		return fmt.Sprintf("nodes %d and %d", m.Pair[0], m.Pair[1])
	case ByRail:
		who := "all"
		if m.Pair != (Pair{}) {
			who = fmt.Sprintf("nodes %d and %d", m.Pair[0], m.Pair[1])
		}
		if m.Rail >= 0 && m.Rail < len(r.Rails) {
			return who + ", on " + r.Rails[m.Rail].Name
		}
	}
	return "all ranks"
}

// SortMeasurements sorts measurements in the order of Print.
func SortMeasurements(all []Measurement) {
	order := []Scope{World, InPair, ByRail, InNode}
	slices.SortStableFunc(all, func(a, b Measurement) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Scope), slices.Index(order, b.Scope)), cmp.Compare(a.Rail, b.Rail),
			cmp.Compare(a.Node, b.Node))
	})
}
