// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

// table is what a benchmark prints.
type table struct {
	rows  [][]string
	notes []string
}

// newTable returns a table with that title. Notes say what is measured.
func newTable(title string, notes ...string) *table {
	return &table{rows: [][]string{{title + ", " + report.When(), "median (range)", ""}}, notes: notes}
}

// add adds a row: the median of values in unit, their range, and comparisons.
func (t *table) add(what, unit string, values []float64, compared ...string) {
	value := number(median(values)) + " " + unit
	if len(values) > 1 {
		value += fmt.Sprintf(" (%s to %s)", number(slices.Min(values)), number(slices.Max(values)))
	}
	t.rows = append(t.rows, []string{what, value, strings.Join(compared, "; ")})
}

// print prints the table, with the notes and the machine below it. The flag -update writes it to the file of that name,
// which bench-train does; without a name it is printed only.
func (t *table) print(b *testing.B, name string) {
	b.Helper()
	report.Page{Name: page, Target: "bench-train"}.Print(b, name, t.rows, append(t.notes, machine()...))
}

// number formats a number with about three significant digits.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// median returns the median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// less compares a time, or another value that should be small, with its aim.
func less(values []float64, aim float64, of string) string {
	return fmt.Sprintf("%.2f of %s", median(values)/aim, of)
}

// times returns the ratio of the other way's median to ours, with the aim if there is one.
func times(other, ours []float64, aim float64, what string) string {
	text := fmt.Sprintf("%.1f x %s", median(other)/median(ours), what)
	if aim > 0 {
		text += fmt.Sprintf(" (aim %g x)", aim)
	}
	return text
}

func since(start time.Time) float64 { return time.Since(start).Seconds() }

// compared returns a cell of a table: the median of values, in seconds, and their range. If other is a different row,
// the cell also has the ratio of the medians.
func compared(values, other []float64) string {
	if len(values) == 0 {
		return "never"
	}
	text := fmt.Sprintf("%s (%s to %s)", number(median(values)), number(slices.Min(values)), number(slices.Max(values)))
	if len(other) > 0 && &values[0] != &other[0] {
		text += fmt.Sprintf(", %s x", number(median(values)/median(other)))
	}
	return text
}

// page quotes the tables of the benchmarks.
const page = "benchmarks"

// printTable prints a table, with the machine below it. The flag -update writes it to the file of that name.
func printTable(b *testing.B, name string, rows [][]string) {
	b.Helper()
	report.Page{Name: page, Target: "bench-peers"}.Print(b, name, rows, machine())
}
