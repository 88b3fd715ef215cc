package trend

import (
	"fmt"
	"math"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/chart"
)

// SVG draws all measures in one file, each in percent of its median, so that they have
// one axis: bandwidth should stay up, step time and loss down.
func (t Trend) SVG() string {
	c := chart.Chart{
		Title:  "Runs of one kind, each value in percent of the median",
		X:      chart.Axis{Label: "start of the run (UTC)", Ticks: t.ticks()},
		Y:      chart.Axis{Label: "percent of the median", Format: func(v float64) string { return fmt.Sprintf("%.0f%%", v) }},
		Levels: []chart.Level{{Name: "median", Y: 100}},
	}
	for _, m := range Measures() {
		median := Median(finite(t.values(m)))
		direction := "more is better"
		if m.lessIsBetter() {
			direction = "less is better"
		}
		series := chart.Series{Name: fmt.Sprintf("%s (%s)", m, direction), Marked: true}
		for i, v := range t.values(m) {
			r := t.Runs[i]
			series.Points = append(series.Points, chart.Point{X: seconds(r.Started), Y: 100 * v / median, Label: fmt.Sprintf("%s: %s %s", r.Run, m, m.text(v))})
		}
		if !math.IsNaN(median) && median != 0 {
			c.Series = append(c.Series, series)
		}
	}
	return c.File()
}

// ticks are the days on which a run started.
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

func finite(values []float64) (kept []float64) {
	for _, v := range values {
		if !math.IsNaN(v) {
			kept = append(kept, v)
		}
	}
	return kept
}
