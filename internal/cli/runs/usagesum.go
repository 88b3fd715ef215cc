// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// usage is what mlenv usage prints.
type usage struct {
	// Since and Until bound the ends of the runs.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Of are the namespaces that were read, or all namespaces, or this machine.
	Of []string `json:"of"`
	// By has the names of the fields in which the groups differ: user, script, verdict, node.
	By []string `json:"by"`
	// Groups start with the one that has used the most.
	Groups []usageGroup `json:"groups"`
	// Total sums all runs once.
	Total usageGroup `json:"total"`
	// Incomplete is what is missing in the sums.
	Incomplete []string `json:"incomplete,omitempty"`
}

// usageGroup sums runs.
type usageGroup struct {
	// User is the user that mlenv noted when it started the runs.
	User string `json:"user,omitempty"`
	// Script has the repository in addition.
	Script string `json:"script,omitempty"`
	// Verdict is Succeeded, or the reason of the failure.
	Verdict string `json:"verdict,omitempty"`
	// Node is a Kubernetes node. Its GPU-hours are those of its own GPUs, its seconds those of the whole runs.
	Node string `json:"node,omitempty"`
	Runs int    `json:"runs"`
	// Seconds add up to the time from the starts to the ends of the runs.
	Seconds receipt.Spent `json:"seconds"`
	// GPUHours are these times multiplied by the GPUs that were assigned.
	GPUHours receipt.Spent `json:"gpuHours"`
	// Goodput is the part of the GPU-hours in which steps lasted, from 0 to 1, or of the time if there were no GPUs.
	Goodput float64 `json:"goodput"`
}

// unknown stands for a user, script or node that the receipt does not have.
const unknown = "(unknown)"

// sum sums the runs that have ended since a time.
func sum(of receipt.UsageSums, by byFlag, since, now time.Time) usage {
	u := usage{Since: since.UTC().Truncate(time.Second), Until: now.UTC().Truncate(time.Second), By: by, Groups: []usageGroup{}}
	groups := map[usageGroup]*usageGroup{}
	for _, r := range of.Runs {
		if r.Ended.Before(since) {
			continue
		}
		u.Total.add(r, 1)
		for key, share := range keysOf(r, by) {
			if groups[key] == nil {
				groups[key] = new(key)
			}
			groups[key].add(r, share)
		}
	}
	for _, g := range groups {
		u.Groups = append(u.Groups, *g)
	}
	slices.SortFunc(u.Groups, func(a, b usageGroup) int {
		return cmp.Or(cmp.Compare(b.GPUHours.Sum(), a.GPUHours.Sum()), cmp.Compare(b.Seconds.Sum(), a.Seconds.Sum()),
			slices.Compare(a.names(by), b.names(by)))
	})
	if of.LostUntil.After(since) {
		u.Incomplete = append(u.Incomplete, fmt.Sprintf("deleted receipts of runs that ended until %s: there was no room for their usage",
			of.LostUntil.UTC().Format(time.RFC3339)))
	}
	if kept := now.Add(-receipt.UsageKept); since.Before(kept.Add(-time.Minute)) {
		u.Incomplete = append(u.Incomplete, fmt.Sprintf("deleted receipts of runs that ended before %s: their usage is kept for 30 days",
			kept.UTC().Format(time.RFC3339)))
	}
	return u
}

// keysOf returns the groups of a run, without sums, each with its share of the run's GPU-hours.
func keysOf(r receipt.Usage, by byFlag) map[usageGroup]float64 {
	if slices.Contains(by, byNode) {
		return sharesOf(r)
	}
	var key usageGroup
	for _, one := range by {
		switch one {
		case byUser:
			key.User = cmp.Or(humanize.OneLine(r.User, 100), unknown)
		case byScript:
			key.Script = scriptOf(r)
		case byVerdict:
			key.Verdict = cmp.Or(humanize.OneLine(r.Reason, 100), string(r.Verdict), unknown)
		}
	}
	return map[usageGroup]float64{key: 1}
}

func sharesOf(r receipt.Usage) map[usageGroup]float64 {
	all := 0
	for _, gpus := range r.Nodes {
		all += gpus
	}
	if len(r.Nodes) == 0 {
		return map[usageGroup]float64{{Node: unknown}: 1}
	}
	shares := map[usageGroup]float64{}
	for node, gpus := range r.Nodes {
		shares[usageGroup{Node: humanize.OneLine(node, 100)}] += float64(gpus) / float64(max(1, all))
	}
	return shares
}

func scriptOf(r receipt.Usage) string {
	switch {
	case r.Script == "":
		return unknown
	case r.Repository == "":
		return humanize.OneLine(r.Script, 100)
	}
	return fmt.Sprintf("%s (%s)", humanize.OneLine(r.Script, 100), humanize.OneLine(r.Repository, 200))
}

func (g *usageGroup) add(r receipt.Usage, share float64) {
	g.Runs++
	g.Seconds = g.Seconds.Plus(r.Goodput.Seconds, 1)
	g.GPUHours = g.GPUHours.Plus(r.Goodput.GPUHours, share)
	g.Goodput = g.GPUHours.Share()
	if g.GPUHours.Sum() == 0 {
		g.Goodput = g.Seconds.Share()
	}
}

// names returns the values that tell the group apart.
func (g *usageGroup) names(by []string) (names []string) {
	for _, one := range by {
		names = append(names, map[string]string{byUser: g.User, byScript: g.Script, byVerdict: g.Verdict, byNode: g.Node}[one])
	}
	return names
}

// partsOf returns the parts of a time in the order of their names.
func partsOf(s receipt.Spent) []float64 {
	return []float64{s.Waiting, s.Starting, s.Steps, s.Repeated, s.Hang, s.Teardown}
}

var partNames = []string{"waiting", "starting", "steps", "repeated", "hang", "teardown"}

// goodputText returns the goodput of a run in one line, without the parts that there were not; "" for none.
func goodputText(g *receipt.Goodput) string {
	if g == nil || g.Seconds.Sum() == 0 {
		return ""
	}
	var parts []string
	for i, seconds := range partsOf(g.Seconds) {
		if text := duration(seconds); text != "-" {
			parts = append(parts, partNames[i]+" "+text)
		}
	}
	text := fmt.Sprintf("%.1f%%: %s", 100*g.Share, strings.Join(parts, ", "))
	if hours := g.GPUHours.Sum(); hours > 0 {
		text += fmt.Sprintf("; %.4g of %.4g GPU-hours in steps that lasted", g.GPUHours.Steps, hours)
	}
	return text
}

// print writes a table.
func (u usage) print(out io.Writer) error {
	fmt.Fprintf(out, "%s of %s ended since %s.\n", humanize.Count(u.Total.Runs, "run"), humanize.FirstAnd(u.Of, 5),
		u.Since.Format("2006-01-02 15:04 UTC"))
	if u.Total.Runs == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := slices.Concat(u.By, []string{"runs", "time", "gpu-hours"}, partNames, []string{"lost", "goodput"})
	fmt.Fprintln(w, strings.ToUpper(strings.Join(head, "\t")))
	total := slices.Repeat([]string{""}, len(u.By))
	total[0] = "total"
	for _, g := range u.Groups {
		fmt.Fprintln(w, g.row(g.names(u.By)))
	}
	fmt.Fprintln(w, u.Total.row(total))
	return w.Flush()
}

// row returns the group as a line of the table. GPU-hours are rounded to tenths.
func (g *usageGroup) row(names []string) string {
	cells := append(slices.Clone(names), strconv.Itoa(g.Runs), duration(g.Seconds.Sum()), fmt.Sprintf("%.1f", g.GPUHours.Sum()))
	for _, part := range partsOf(g.Seconds) {
		cells = append(cells, duration(part))
	}
	cells = append(cells, fmt.Sprintf("%.1f", g.GPUHours.Sum()-g.GPUHours.Steps), fmt.Sprintf("%.1f%%", 100*g.Goodput))
	return strings.Join(cells, "\t")
}

func duration(seconds float64) string {
	if seconds < 0.5 {
		return "-"
	}
	return time.Duration(min(seconds, 1e9) * float64(time.Second)).Round(time.Second).String()
}

// writeCSV writes a line for each group, in seconds and GPU-hours.
func (u usage) writeCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	head := append(slices.Clone(u.By), "runs")
	for _, unit := range []string{"_seconds", "_gpu_hours"} {
		head = append(head, humanize.Each(partNames, func(part string) string { return part + unit })...)
	}
	lines := [][]string{append(head, "goodput")}
	for _, g := range u.Groups {
		line := append(humanize.Each(g.names(u.By), harmlessCell), strconv.Itoa(g.Runs))
		for _, number := range slices.Concat(partsOf(g.Seconds), partsOf(g.GPUHours), []float64{g.Goodput}) {
			line = append(line, strconv.FormatFloat(number, 'f', 4, 64))
		}
		lines = append(lines, line)
	}
	return w.WriteAll(lines)
}

// harmlessCell returns a text that no spreadsheet takes for a formula: others may choose the names of scripts.
func harmlessCell(text string) string {
	if strings.ContainsAny(text[:min(1, len(text))], "=+-@\t\r") {
		return "'" + text
	}
	return text
}
