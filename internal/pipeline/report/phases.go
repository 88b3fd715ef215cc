// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

type phases struct {
	Missing string
	Bars    []bar
	Whole   string
	More    string
	Goodput *goodput
}

// bar is a phase on the timeline. Left and Width are percentages.
type bar struct {
	Name, Text  string
	Class       string
	Left, Width float64
}

func phasesOf(r receipt.Receipt) phases {
	if len(r.Phases) == 0 {
		if r.Run == "" {
			return phases{Missing: "This was not a PipelineRun, so there are no phases."}
		}
		return phases{Missing: "The receipt has no phases: the run's tasks could not be read, or none started."}
	}
	begin, end := span(r)
	list, more := atMost(r.Phases, mostPhases, "phases")
	result := phases{More: more, Whole: humanize.Duration(end.Sub(begin)), Goodput: goodputOf(r.Goodput)}
	for _, p := range list {
		b := bar{Name: truncate(p.Name, mostLine), Class: cmp.Or(classes[p.Status], "open")}
		until := p.Ended
		switch {
		case p.Started.IsZero():
			b.Text = "did not start"
		case until.IsZero():
			until = end
			b.Text = "not ended after " + humanize.Duration(until.Sub(p.Started))
		default:
			b.Text = humanize.Duration(until.Sub(p.Started))
		}
		if p.Status == run.Failed {
			b.Text += ", failed"
			if p.Reason != "" {
				b.Text += ": " + truncate(p.Reason, mostLine)
			}
		}
		if p.Retries > 0 {
			b.Text += ", retried " + humanize.Count(p.Retries, "time")
		}
		if !p.Started.IsZero() {
			b.Left = percent(p.Started.Sub(begin), end.Sub(begin))
			b.Width = max(0, min(100-b.Left, percent(until.Sub(p.Started), end.Sub(begin))))
		}
		result.Bars = append(result.Bars, b)
	}
	return result
}

// span returns the timeline, from the run's start to its end.
func span(r receipt.Receipt) (begin, end time.Time) {
	begin, end = r.Started, r.Ended
	for _, p := range r.Phases {
		if !p.Started.IsZero() && (begin.IsZero() || p.Started.Before(begin)) {
			begin = p.Started
		}
		for _, t := range []time.Time{p.Started, p.Ended} {
			if t.After(end) {
				end = t
			}
		}
	}
	return begin, end
}

// classes are the CSS classes of phases that have ended.
var classes = map[run.Status]string{run.Succeeded: "good", run.Failed: "bad"}

// percent is rounded to tenths.
func percent(part, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(int(1000*part.Seconds()/whole.Seconds())) / 10
}
