//go:build e2e

package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// printTitle begins a table.
func printTitle(title string, notes ...string) {
	printMachine()
	fmt.Printf("\n%s\n", title)
	for _, note := range notes {
		fmt.Printf("  (%s)\n", note)
	}
}

// printLine prints one line: the median of values in unit, their range, and comparisons.
func printLine(what, unit string, values []float64, compared ...string) {
	line := fmt.Sprintf("  %-66s %8s %-4s", what, number(median(values)), unit)
	if len(values) > 1 {
		line += fmt.Sprintf(" %-15s", number(slices.Min(values))+" to "+number(slices.Max(values)))
	} else {
		line += strings.Repeat(" ", 16)
	}
	fmt.Println(strings.TrimRight(line+"  "+strings.Join(compared, "; "), " "))
}

// number formats with three significant digits.
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

// times prints how many times as long, or as fast, another way took.
func times(other, ours []float64, aim float64, what string) string {
	text := fmt.Sprintf("%.1f x %s", median(other)/median(ours), what)
	if aim > 0 {
		text += fmt.Sprintf(" (aim %g x)", aim)
	}
	return text
}

func since(start time.Time) float64 { return time.Since(start).Seconds() }
