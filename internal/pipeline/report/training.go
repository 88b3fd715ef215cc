// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/chart"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

type training struct {
	Missing string
	// Warning reports losses that were not finite.
	Warning  string
	Pictures []picture
	Ranks    []meter
	More     string
	// Last is the last value of each metric.
	Last string
}

// picture is a chart with a caption that describes the same facts.
type picture struct {
	SVG  template.HTML
	Text string
}

// meter is a value as a bar; Width is a percentage of the longest bar.
type meter struct {
	Name, Text string
	Class      string
	Width      float64
}

func pictureOf(c chart.Chart, text string) picture {
	return picture{template.HTML(c.SVG()), text} // chart escapes every text
}

func trainingOf(r receipt.Receipt) training {
	result := training{Last: truncate(string(r.Metrics), mostText)}
	c := r.Curve
	if c == nil || len(c.Points) == 0 {
		switch {
		case r.WorldSize() == 0:
			result.Missing = "There are no curves: no rank was started."
		case len(r.Metrics) > 0:
			result.Missing = "There are no curves: the receipt has only the last values, because it would have been too large."
		default:
			result.Missing = "There are no curves: the training wrote no metrics, see docs/reference/metrics.md."
		}
		return result
	}
	if c.NotFinite > 0 {
		result.Warning = fmt.Sprintf("The loss was NaN or infinite in %s of %d, first at step %s. The curve has gaps there.",
			humanize.Count(c.NotFinite, "line"), c.Lines, chart.Number(c.FirstNotFinite))
	}
	result.Pictures = curves(c)
	if len(result.Pictures) == 0 {
		result.Missing = "There are no curves: the metrics have steps, but neither a loss nor times."
	}
	result.Ranks, result.More = rankTimes(c)
	return result
}

func curves(c *metrics.Curve) (pictures []picture) {
	for _, one := range []func(*metrics.Curve) (chart.Chart, string){lossChart, rateChart, stepChart} {
		if drawn, text := one(c); !drawn.Empty() {
			pictures = append(pictures, pictureOf(drawn, text))
		}
	}
	return pictures
}

// Curves draws loss, rate and step time as elements of a page that has chart.CSS.
func Curves(c *metrics.Curve) (drawn []template.HTML) {
	for _, picture := range curves(c) {
		drawn = append(drawn, picture.SVG)
	}
	return drawn
}

// series returns the course of a value; a point without the value is a gap.
func series(name string, c *metrics.Curve, value func(metrics.Point) float64) chart.Series {
	s := chart.Series{Name: name}
	for _, p := range c.Points {
		s.Points = append(s.Points, chart.Point{X: p.Step, Y: value(p)})
	}
	return s
}

// given returns NaN for a value that is not known.
func given(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

// positive returns NaN for 0, which is not known.
func positive(v float64) float64 {
	if v > 0 {
		return v
	}
	return math.NaN()
}

func drawable(s chart.Series) bool {
	return !(&chart.Chart{Series: []chart.Series{s}}).Empty()
}

func lossChart(c *metrics.Curve) (chart.Chart, string) {
	mean := series("loss", c, func(p metrics.Point) float64 { return given(p.Loss) })
	drawn := chart.Chart{Title: "Loss by step", X: chart.Axis{Label: "step"}, Y: chart.Axis{Label: "loss"}, Series: []chart.Series{mean}}
	if highest := series("highest", c, func(p metrics.Point) float64 { return given(p.Highest) }); drawable(highest) {
		drawn.Series[0].Name = "mean"
		drawn.Series = append(drawn.Series, highest)
	}
	known := slices.DeleteFunc(slices.Clone(c.Points), func(p metrics.Point) bool { return p.Loss == nil })
	if len(known) == 0 {
		return drawn, ""
	}
	byLoss := func(a, b metrics.Point) int { return cmp.Compare(*a.Loss, *b.Loss) }
	begin, end := known[0], known[len(known)-1]
	lowest, top := slices.MinFunc(known, byLoss), slices.MaxFunc(known, byLoss)
	// A loss that falls from thousands to ones would be a flat line.
	const far = 1000
	drawn.Y.Log = *lowest.Loss > 0 && *top.Loss / *lowest.Loss > far
	text := fmt.Sprintf("Loss: %s at step %s, %s at step %s; the lowest is %s at step %s.", chart.Number(*begin.Loss),
		chart.Number(begin.Step),
		chart.Number(*end.Loss), chart.Number(end.Step), chart.Number(*lowest.Loss), chart.Number(lowest.Step))
	if c.Lines > len(c.Points) {
		text += fmt.Sprintf(" Each point is the mean of some of the %d lines.", c.Lines)
	}
	return drawn, text
}

func rateChart(c *metrics.Curve) (chart.Chart, string) {
	unit := c.Rate + "/s"
	highest := 0.0
	rate := series(unit, c, func(p metrics.Point) float64 {
		highest = max(highest, p.PerSecond)
		return positive(p.PerSecond)
	})
	return chart.Chart{Title: "Throughput by step", X: chart.Axis{Label: "step"},
			Y: chart.Axis{Label: "throughput in " + unit, FromZero: true}, Series: []chart.Series{rate}},
		fmt.Sprintf("Throughput of all ranks together: up to %s %s.", chart.Number(highest), unit)
}

func stepChart(c *metrics.Curve) (chart.Chart, string) {
	all := series("step", c, func(p metrics.Point) float64 { return positive(p.StepTime.Seconds()) })
	drawn := chart.Chart{Title: "Step time", X: chart.Axis{Label: "step"}, Y: chart.Axis{Label: "seconds a step", FromZero: true}}
	for _, s := range []chart.Series{all, series("slowest rank's own part", c, func(p metrics.Point) float64 {
		return positive(p.Slowest.Seconds())
	})} {
		if drawable(s) {
			drawn.Series = append(drawn.Series, s)
		}
	}
	if c.StepTime == 0 {
		return drawn, "The metrics do not have the time of a step."
	}
	return drawn, fmt.Sprintf("Step time: %s, the median of the points.", axisStep(c.StepTime))
}

// rankTimes shows for which rank the others wait.
func rankTimes(c *metrics.Curve) (bars []meter, more string) {
	var slowest time.Duration
	for _, r := range c.Ranks {
		slowest = max(slowest, r.Mean)
	}
	ranks, more := atMost(c.Ranks, mostTails*mostTails, "ranks")
	for _, r := range ranks {
		bars = append(bars, meter{Name: fmt.Sprintf("rank %d", r.Rank), Class: "plain", Width: percent(r.Mean, slowest),
			Text: fmt.Sprintf("%s mean, %s longest", axisStep(r.Mean), axisStep(r.Longest))})
	}
	return bars, more
}

func lastLoss(c *metrics.Curve) string {
	for _, point := range slices.Backward(c.Points) {
		switch {
		case point.Loss != nil:
			return chart.Number(*point.Loss)
		case point.NotFinite > 0:
			return "not finite"
		}
	}
	return ""
}

func axisStep(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3g s", d.Seconds())
}
