// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// goodput shows where the time of a run went: one bar whose parts stand below each other.
type goodput struct {
	Bars []bar
	Text string
}

// goodputOf returns nil for a run without times.
func goodputOf(g *receipt.Goodput) *goodput {
	if g == nil || g.Seconds.Total() <= 0 {
		return nil
	}
	result, sum, left := &goodput{}, g.Seconds.Total(), 0.0
	for _, part := range []struct {
		name, class    string
		seconds, hours float64
	}{
		{"waiting for GPUs", "open", g.Seconds.Waiting, g.GPUHours.Waiting},
		{"starting", "plain", g.Seconds.Starting, g.GPUHours.Starting},
		{"useful steps", "good", g.Seconds.Steps, g.GPUHours.Steps},
		{"steps done again", "bad", g.Seconds.Repeated, g.GPUHours.Repeated},
		{"hanging", "bad", g.Seconds.Hang, g.GPUHours.Hang},
		{"teardown", "open", g.Seconds.Teardown, g.GPUHours.Teardown},
	} {
		if part.seconds <= 0 {
			continue
		}
		b := bar{Name: part.name, Class: part.class, Text: seconds(part.seconds), Left: tenths(left, sum)}
		if part.hours > 0 {
			b.Text += fmt.Sprintf(", %.4g GPU-hours", part.hours)
		}
		b.Width = max(0, min(100-b.Left, tenths(part.seconds, sum)))
		result.Bars, left = append(result.Bars, b), left+part.seconds
	}
	result.Text = fmt.Sprintf("Useful steps took %.1f%% of the time with all GPUs.", 100*g.Share)
	if !g.Measured && g.Seconds.Steps+g.Seconds.Repeated > 0 {
		result.Text = "Not measured: the training wrote no times of steps, so the whole time of the ranks counts as steps."
	}
	return result
}

func seconds(s float64) string {
	return humanize.Duration(time.Duration(min(s, 1e9) * float64(time.Second)).Round(time.Second))
}

// tenths returns a percentage, rounded to tenths.
func tenths(part, whole float64) float64 { return float64(int(1000*part/whole)) / 10 }
