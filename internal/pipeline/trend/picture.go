// SPDX-License-Identifier: Apache-2.0

package trend

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/chart"
)

// SVG draws all measures in percent of their medians, so that they share one axis.
func (t Trend) SVG() string {
	c := chart.Chart{
		Title:  "Runs of one kind, each value in percent of the median",
		X:      chart.Axis{Label: "start of the run (UTC)", Ticks: t.ticks()},
		Y:      chart.Axis{Label: "percent of the median", Format: func(v float64) string { return fmt.Sprintf("%.0f%%", v) }},
		Levels: []chart.Level{{Name: "median", Y: 100}},
	}
	for _, m := range Measures() {
		median := Median(slices.DeleteFunc(t.values(m), math.IsNaN))
		direction := "more is better"
		if m.lessIsBetter() {
			direction = "less is better"
		}
		series := chart.Series{Name: fmt.Sprintf("%s (%s)", m, direction)}
		for i, v := range t.values(m) {
			r := t.Runs[i]
			series.Points = append(series.Points, chart.Point{X: seconds(r.Started), Y: 100 * v / median,
				Label: fmt.Sprintf("%s: %s %s", r.Run, m, m.formatValue(v))})
		}
		if !math.IsNaN(median) && median != 0 {
			c.Series = append(c.Series, series)
		}
	}
	return c.File()
}

func (t Trend) ticks() (ticks []chart.Tick) {
	last := ""
	for _, r := range t.Runs {
		if day := r.Started.UTC().Format("01-02"); day != last {
			ticks = append(ticks, chart.Tick{Value: seconds(r.Started), Label: day})
			last = day
		}
	}
	return ticks
}

func seconds(at time.Time) float64 { return float64(at.Unix()) }
