// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// maxMessage bounds a message and a traceback, in bytes.
const maxMessage = 2000

// mostRows is how many nodes or ranks a table lists one by one. In a longer table those that read the same share a row, with the
// longest of their times, unless they are few.
const mostRows = 16

// groupRows returns the members of each row, in the order of the first ones.
func groupRows[T any](all []T, key func(T) string) (rows [][]T) {
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

// tellUser prints a text whose commands the user can run.
func tellUser(out io.Writer, format string, args ...any) {
	fmt.Fprint(out, command.ForTerminal(fmt.Sprintf(format, args...)))
}

func durationText(o launch.Outcome) string {
	status := o.Run.Status
	if status.StartTime == nil || status.CompletionTime == nil {
		return ""
	}
	return " after " + humanize.Duration(status.CompletionTime.Sub(status.StartTime.Time))
}

// metricsText formats a line of metrics as text, without its time.
func metricsText(line json.RawMessage) string {
	var metrics map[string]json.RawMessage
	if len(line) == 0 {
		return ""
	}
	if err := json.Unmarshal(line, &metrics); err != nil {
		return humanize.OneLine(string(line), 400)
	}
	delete(metrics, "time")
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		text := string(metrics[name])
		if number, err := strconv.ParseFloat(text, 64); err == nil && strings.Contains(text, ".") {
			text = strconv.FormatFloat(number, 'g', 5, 64)
		}
		texts = append(texts, name+" "+text)
	}
	return humanize.OneLine(strings.Join(texts, ", "), 400)
}

// modeText returns "tcp, because the cluster file of local disables it".
func modeText(mode agent.Mode, reason string) string {
	if mode == "" || reason == "" {
		return string(mode)
	}
	return string(mode) + ", because " + humanize.OneLine(reason, 300)
}
