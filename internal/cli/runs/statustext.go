// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/report"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

func (s *status) print(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := rowsOf(w)
	row("run", receipt.Receipt{Run: s.Name, Namespace: s.Namespace}.Title())
	row("state", s.State)
	row("reason", string(s.Reason))
	row("warning", s.Warning)
	row("message", humanize.Lines(s.Message, maxMessage))
	row("environment", s.Environment)
	row("started", report.Stamp(s.Started))
	if d := s.duration(now); d > 0 {
		row("time", humanize.Duration(d))
	}
	if s.Nodes > 0 {
		row("nodes", fmt.Sprint(s.Nodes))
	}
	row("mode", modeText(s.Mode, s.ModeReason))
	row("commit", s.Commit)
	row("image", s.Image)
	row("metrics", metricsText(s.Metrics))
	row("progress", notedText(s.Noted, now))
	if s.Noted != nil && s.Noted.NotFinite != nil {
		row("warning", fmt.Sprintf("the loss was NaN or infinite, first at step %.0f", *s.Noted.NotFinite))
	}
	row("attempt", s.attempt())
	row("silent", s.silence())
	row("saving", s.Saving)
	printPhases(w, s.Tasks, now)
	if err := w.Flush(); err != nil {
		return err
	}
	for _, waits := range s.Waits {
		fmt.Fprintf(out, "\n%s: %s\n", waits.Task, waits.Text)
		if waits.Next != "" {
			fmt.Fprintf(out, "  next: %s\n", waits.Next)
		}
	}
	if len(s.Live) > 0 && s.Unseen == "" {
		fmt.Fprintln(w, "\nNODE\tJOB\tRANKS\tQUIET FOR")
		for _, same := range alike(s.Live, func(l live) string { return fmt.Sprint(l.State, l.Ranks, l.All) }) {
			l := slices.MaxFunc(same, func(a, b live) int { return cmp.Compare(a.Quiet, b.Quiet) })
			fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s\n", rowName(l.Node, len(same), "node"), l.State, l.Ranks, l.All, humanize.Seconds(l.Quiet))
		}
	}
	if s.Unseen != "" {
		fmt.Fprintf(w, "\nThe nodes did not answer: %s\n", s.Unseen)
	}
	return w.Flush()
}

// maxWaiting bounds what a task waits for, in bytes.
const maxWaiting = 500

// notedText returns for example "step 40 of 100, loss 2.104, 12345 tokens/s, about 3m0s left; 12s ago".
func notedText(p *receipt.Progress, now time.Time) string {
	if p == nil || p.At.IsZero() {
		return ""
	}
	text := metrics.AtStep(p.Step, p.Steps, p.Source)
	if p.Loss != nil {
		text += fmt.Sprintf(", loss %.4g", *p.Loss)
	}
	switch {
	case p.TokensPerSecond > 0:
		text += fmt.Sprintf(", %.4g tokens/s", p.TokensPerSecond)
	case p.SamplesPerSecond > 0:
		text += fmt.Sprintf(", %.4g samples/s", p.SamplesPerSecond)
	}
	if p.SecondsLeft > 0 {
		text += ", about " + humanize.Seconds(p.SecondsLeft) + " left"
	}
	return text + "; " + humanize.Duration(max(0, now.Sub(p.At)).Truncate(time.Second)) + " ago"
}

// maxMessage bounds a message and a traceback, in bytes.
const maxMessage = 2000

// mostRows is how many nodes or ranks a table lists one by one. In a longer table those that read the same share a row, with the
// longest of their times, unless they are few.
const mostRows = 16

// alike returns the members of each row, in the order of the first ones.
func alike[T any](all []T, key func(T) string) (rows [][]T) {
	members := map[string][]T{}
	for _, one := range all {
		members[key(one)] = append(members[key(one)], one)
	}
	const few = 4
	for _, one := range all {
		same, listed := members[key(one)]
		switch {
		case len(all) <= mostRows || listed && len(same) <= few:
			rows = append(rows, []T{one})
		case listed:
			rows = append(rows, same)
			delete(members, key(one))
		}
	}
	return rows
}

// rowName returns the number of the only member of a row, or how many it has, for example "508 nodes".
func rowName(number, members int, what string) string {
	if members == 1 {
		return strconv.Itoa(number)
	}
	return humanize.Count(members, what)
}

// rowsOf returns a function that prints a name and a value, unless the value is empty. The lines of a value stay lines.
func rowsOf(w io.Writer) func(name, value string) {
	return func(name, value string) {
		for line := range strings.Lines(value) {
			fmt.Fprintf(w, "%s\t%s\n", name, strings.TrimSuffix(line, "\n"))
			name = ""
		}
	}
}

// printPhases prints the table of the tasks. The time of a running task ends now.
func printPhases(w io.Writer, phases []receipt.Phase, now time.Time) {
	if len(phases) > 0 {
		fmt.Fprintln(w, "\nPHASE\tSTATUS\tTIME\tREASON")
	}
	for _, p := range phases {
		took := "-"
		switch {
		case !p.Ended.IsZero():
			took = humanize.Duration(p.Ended.Sub(p.Started))
		case !p.Started.IsZero() && p.Status == run.Running:
			took = humanize.Duration(now.Sub(p.Started))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Name, p.Status, took, p.Reason)
	}
}
