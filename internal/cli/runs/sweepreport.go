// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// notStarted is the state of a trial without a run.
const notStarted = "NotStarted"

// sweepReport is how the trials of a sweep stand.
type sweepReport struct {
	Name string `json:"name"`
	// Namespace is empty for a sweep of local runs.
	Namespace string `json:"namespace"`
	// Trials are in the order in which they start, and have the fields of RunList; state is NotStarted for a trial without a run.
	Trials []trialReport `json:"trials"`
}

type trialReport struct {
	summary
	// Values are what the trial gives the script, by the names of the arguments.
	Values  map[string]string `json:"values"`
	Message string            `json:"message,omitempty"`
	// Metrics are the last values that the training wrote; of a run in progress its step and loss.
	Metrics json.RawMessage `json:"metrics,omitempty"`

	settings []setting
	last     map[string]any
}

// reportOf describes a trial. r is nil if it has no run.
func reportOf(t trial, sweepName, namespace string, r *entry) trialReport {
	report := trialReport{settings: t.settings, Values: map[string]string{}}
	for _, s := range t.settings {
		report.Values[s.name] = s.value
	}
	if r == nil {
		report.summary = summary{Name: t.name, Namespace: namespace, Sweep: sweepName, State: notStarted}
		return report
	}
	report.summary = r.summary(namespace)
	if r.receipt != nil || report.State != cancelled {
		report.Message = r.standing().Message
	}
	report.Metrics = r.lastValues()
	if json.Unmarshal(report.Metrics, &report.last) != nil {
		report.last = nil
	}
	return report
}

// lastValues returns the last metrics of a run, as far as its receipt or its steps have noted them.
func (r entry) lastValues() json.RawMessage {
	if noted := r.known().Metrics; len(noted) > 0 || r.memory == nil || r.memory.Progress == nil {
		return noted
	}
	if r.memory.Progress.At.IsZero() {
		return nil // there is only a checkpoint
	}
	at := map[string]any{"step": r.memory.Progress.Step}
	if loss := r.memory.Progress.Loss; loss != nil {
		at["loss"] = *loss
	}
	text, _ := json.Marshal(at) // it was read as JSON
	return text
}

// exit returns the exit code of a sweep as an error. stopped is true if the user has cancelled all trials.
func (s sweepReport) exit(stopped bool) error {
	switch {
	case stopped:
		return &command.Exit{Code: command.Interrupted}
	case slices.ContainsFunc(s.Trials, trialReport.failed):
		return &command.Exit{Code: command.Failed}
	}
	return nil
}

// failed reports whether the trial has ended without success, or will.
func (t trialReport) failed() bool {
	return slices.Contains([]string{string(receipt.Failed), cancelled, cancelling}, t.State)
}

// print writes the table, the trials with the lowest last loss first, and why trials failed.
func (s sweepReport) print(out io.Writer, now time.Time) error {
	sorted := slices.Clone(s.Trials)
	slices.SortStableFunc(sorted, func(a, b trialReport) int { return cmp.Compare(a.loss(), b.loss()) })
	columns := s.columns()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := []string{"NAME"}
	for _, set := range s.Trials[0].settings {
		head = append(head, set.name)
	}
	head = append(head, "STATE")
	fmt.Fprintln(w, strings.Join(append(append(head, columns...), "DURATION", "REASON"), "\t"))
	for _, t := range sorted {
		row := []string{t.Name}
		for _, set := range t.settings {
			row = append(row, humanize.OneLine(set.value, widestCell))
		}
		row = append(row, t.State)
		for _, name := range columns {
			row = append(row, cell(t.last[name]))
		}
		took := "-"
		if d := t.duration(now); d > 0 {
			took = humanize.Duration(d)
		}
		fmt.Fprintln(w, strings.Join(append(row, took, cmp.Or(string(t.Reason), "-")), "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return s.printEnds(out)
}

// printEnds counts the states, and prints what is to be done.
func (s sweepReport) printEnds(out io.Writer) error {
	counts := map[string]int{}
	for _, t := range s.Trials {
		counts[t.State]++
	}
	var words []string
	for _, state := range []string{string(receipt.Succeeded), string(receipt.Failed), cancelled, cancelling, running, notStarted} {
		if counts[state] > 0 {
			words = append(words, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	_, err := fmt.Fprintf(out, "Sweep %s: %s.\n", s.Name, strings.Join(words, ", "))
	if counts[running]+counts[notStarted] > 0 {
		fmt.Fprintln(out, "The same command continues the sweep.")
	}
	failed := slices.DeleteFunc(slices.Clone(s.Trials), func(t trialReport) bool { return t.State != string(receipt.Failed) })
	for _, t := range failed[:min(len(failed), mostFailures)] {
		in := ""
		if t.Namespace != "" {
			in = " -n " + t.Namespace
		}
		fmt.Fprintf(out, "%s: %s: %s\n  next: mlenv logs %s%s\n", t.Name, t.Reason, humanize.OneLine(t.Message, maxWaiting), t.Name, in)
	}
	if more := len(failed) - mostFailures; more > 0 {
		fmt.Fprintf(out, "and %d more failed\n", more)
	}
	return err
}

// loss returns the last loss, infinite for a trial without one.
func (t trialReport) loss() float64 {
	if loss, ok := metrics.Number(t.last, "loss"); ok {
		return loss
	}
	return math.Inf(1)
}

const (
	// mostColumns is how many metrics the table has; JSON has all.
	mostColumns = 6
	widestCell  = 40
	// mostFailures is how many trials are explained below the table.
	mostFailures = 10
)

// columns returns the metrics of the table: step and loss, and then those that the script chose.
func (s sweepReport) columns() (names []string) {
	seen := map[string]bool{}
	for _, t := range s.Trials {
		for name, value := range t.last {
			if _, number := value.(float64); number {
				seen[name] = true
			}
		}
	}
	for _, name := range []string{"step", "loss"} {
		if seen[name] {
			names = append(names, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if !slices.Contains(metrics.Defined(), name) && len(names) < mostColumns {
			names = append(names, name)
		}
	}
	return names
}

// cell returns a value of a metric as text.
func cell(value any) string {
	switch value := value.(type) {
	case float64:
		if value == math.Trunc(value) && math.Abs(value) < 1e15 {
			return strconv.FormatFloat(value, 'f', -1, 64)
		}
		return strconv.FormatFloat(value, 'g', 5, 64)
	case string: // a number that JSON does not have
		return humanize.OneLine(value, widestCell)
	}
	return "-"
}
