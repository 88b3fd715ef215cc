// SPDX-License-Identifier: Apache-2.0

package trend

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// bars have rising height; a run without a value is a dot.
const bars = "▁▂▃▄▅▆▇█"

// Print prints a row of bars for each measure, a line for each run, and the comparison of the newest run.
func (t Trend) Print(out io.Writer) error {
	fmt.Fprintf(out, "%s\n\n", t.Kind)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, m := range Measures() {
		values := t.values(m)
		low, high := limits(values)
		if math.IsNaN(low) {
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s to %s\n", m, sparkline(values, low, high), m.formatValue(low), m.formatValue(high))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STARTED\tRUN\tVERDICT\tCOMMIT\tMODE\tBANDWIDTH\tSTEP TIME\tLOSS\tGOODPUT\tMATRIX PRODUCT\tSLOWEST DEVICE")
	for _, r := range t.Runs {
		verdict := string(r.Verdict)
		switch {
		case r.Reason != "":
			verdict = string(r.Reason)
		case r.Regression != "":
			verdict = "Regression"
		}
		loss := Loss.formatValue(Loss.valueIn(r.Values))
		if r.Values.LossLost {
			loss = "not finite"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Started.UTC().Format("2006-01-02 15:04"), r.Run, verdict,
			cmp.Or(r.Commit[:min(len(r.Commit), 10)], "-"), cmp.Or(r.Mode, "-"), Bandwidth.formatValue(Bandwidth.valueIn(r.Values)),
			StepTime.formatValue(StepTime.valueIn(r.Values)), loss, Goodput.formatValue(Goodput.valueIn(r.Values)),
			Product.formatValue(Product.valueIn(r.Values)), Slowest.formatValue(Slowest.valueIn(r.Values)))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(t.Newest) > 0 {
		fmt.Fprintln(out, "\nThe newest run that succeeded:")
	}
	for _, c := range t.Newest {
		fmt.Fprintf(out, "  %s\n", c)
	}
	if len(t.Others) > 0 {
		fmt.Fprintln(out, "\nOther kinds of runs:")
	}
	for _, other := range t.Others {
		if _, err := fmt.Fprintf(out, "  --like=%s  %s\n", other.Run, other.Kind); err != nil {
			return err
		}
	}
	return nil
}

func (t Trend) values(m Measure) []float64 {
	var values []float64
	for _, r := range t.Runs {
		values = append(values, m.valueIn(r.Values))
	}
	return values
}

// limits returns NaN without values.
func limits(values []float64) (low, high float64) {
	finite := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(finite) == 0 {
		return math.NaN(), math.NaN()
	}
	return slices.Min(finite), slices.Max(finite)
}

func sparkline(values []float64, low, high float64) string {
	heights := []rune(bars)
	var line strings.Builder
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			line.WriteRune('·')
		case high == low:
			line.WriteRune(heights[len(heights)/2])
		default:
			line.WriteRune(heights[int((v-low)/(high-low)*float64(len(heights)-1)+0.5)])
		}
	}
	return line.String()
}
