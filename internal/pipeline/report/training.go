package report

import (
	"fmt"
	"html/template"
	"math"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/chart"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// training is how it went by its own metrics.
type training struct {
	Missing string
	// Warning is about a loss that was not a number.
	Warning  string
	Pictures []picture
	Ranks    []meter
	More     string
	// Last are the last values of all metrics.
	Last string
}

// picture is a chart with a sentence that says the same.
type picture struct {
	SVG  template.HTML
	Text string
}

// meter is a value as a bar, Width in percent of the longest one.
type meter struct {
	Name, Text string
	Class      string
	Width      float64
}

func pictureOf(c chart.Chart, text string) picture {
	return picture{template.HTML(c.SVG()), text} // chart escapes every text
}

func trainingOf(r receipt.Receipt) training {
	result := training{Last: cut(string(r.Metrics), mostText)}
	c := r.Curve
	if c == nil || len(c.Points) == 0 {
		switch {
		case len(r.Ranks) == 0:
			result.Missing = "There are no curves: the receipt knows of no rank that was started."
		case len(r.Metrics) > 0:
			result.Missing = "There are no curves: the receipt has the last values only. It was written by an older version, or would have been too large."
		default:
			result.Missing = "There are no curves: the training wrote no metrics. One line of Python in the script gives them, see docs/metrics.md."
		}
		return result
	}
	if c.NotFinite > 0 {
		result.Warning = fmt.Sprintf("The loss was NaN or infinite in %s of %d, for the first time at step %s. The curve has a gap where no value was finite.",
			humanize.Count(c.NotFinite, "line"), c.Lines, chart.Number(c.FirstNotFinite))
	}
	for _, one := range []func(*metrics.Curve) (chart.Chart, string){lossChart, rateChart, stepChart} {
		if drawn, text := one(c); !drawn.Empty() {
			result.Pictures = append(result.Pictures, pictureOf(drawn, text))
		}
	}
	if len(result.Pictures) == 0 {
		result.Missing = "There are no curves: the metrics have steps, but neither a loss nor times."
	}
	result.Ranks, result.More = rankTimes(c)
	return result
}

// series is a value of each point; none is a gap.
func series(name string, c *metrics.Curve, value func(metrics.Point) (v float64, ok bool)) chart.Series {
	s := chart.Series{Name: name, Marked: true}
	for _, p := range c.Points {
		v, ok := value(p)
		if !ok {
			v = math.NaN()
		}
		s.Points = append(s.Points, chart.Point{X: p.Step, Y: v})
	}
	return s
}

// has is true where a series has something to draw.
func has(s chart.Series) bool {
	return !(&chart.Chart{Series: []chart.Series{s}}).Empty()
}

func lossChart(c *metrics.Curve) (chart.Chart, string) {
	mean := series("loss", c, func(p metrics.Point) (float64, bool) { return value(p.Loss) })
	drawn := chart.Chart{Title: "Loss by step", X: chart.Axis{Label: "step"}, Y: chart.Axis{Label: "loss"}}
	if highest := series("highest", c, func(p metrics.Point) (float64, bool) { return value(p.Highest) }); has(highest) {
		mean.Name = "mean"
		drawn.Series = append(drawn.Series, highest)
	}
	drawn.Series = append([]chart.Series{mean}, drawn.Series...)
	var begin, end, lowest *metrics.Point
	top := 0.0
	for i := range c.Points {
		p := &c.Points[i]
		if p.Loss == nil {
			continue
		}
		if begin == nil {
			begin, lowest = p, p
		}
		if *p.Loss < *lowest.Loss {
			lowest = p
		}
		end = p
		top = max(top, *p.Loss)
	}
	if begin == nil {
		return drawn, ""
	}
	// A loss that falls from thousands to ones would be a flat line.
	const far = 1000
	drawn.Y.Log = *lowest.Loss > 0 && top / *lowest.Loss > far
	text := fmt.Sprintf("Loss: %s at step %s, %s at step %s; the lowest is %s at step %s.", chart.Number(*begin.Loss), chart.Number(begin.Step),
		chart.Number(*end.Loss), chart.Number(end.Step), chart.Number(*lowest.Loss), chart.Number(lowest.Step))
	if c.Lines > len(c.Points) {
		text += fmt.Sprintf(" Each point is the mean of some of the %d lines.", c.Lines)
	}
	return drawn, text
}

func rateChart(c *metrics.Curve) (chart.Chart, string) {
	unit := c.Rate + "/s"
	highest := 0.0
	rate := series(unit, c, func(p metrics.Point) (float64, bool) {
		highest = max(highest, p.PerSecond)
		return p.PerSecond, p.PerSecond > 0
	})
	return chart.Chart{Title: "Throughput by step", X: chart.Axis{Label: "step"}, Y: chart.Axis{Label: "throughput in " + unit, FromZero: true}, Series: []chart.Series{rate}},
		fmt.Sprintf("Throughput of all ranks together: up to %s %s.", chart.Number(highest), unit)
}

func stepChart(c *metrics.Curve) (chart.Chart, string) {
	all := series("step", c, func(p metrics.Point) (float64, bool) { return p.StepTime.Seconds(), p.StepTime > 0 })
	drawn := chart.Chart{Title: "Step time", X: chart.Axis{Label: "step"}, Y: chart.Axis{Label: "seconds a step", FromZero: true}}
	for _, s := range []chart.Series{all, series("slowest rank's own part", c, func(p metrics.Point) (float64, bool) { return p.Slowest.Seconds(), p.Slowest > 0 })} {
		if has(s) {
			drawn.Series = append(drawn.Series, s)
		}
	}
	if c.StepTime == 0 {
		return drawn, "The metrics do not tell the time of a step."
	}
	return drawn, fmt.Sprintf("Step time: %s, the median of the points.", step(c.StepTime))
}

// rankTimes shows which rank the others wait for.
func rankTimes(c *metrics.Curve) (bars []meter, more string) {
	var slowest time.Duration
	for _, r := range c.Ranks {
		slowest = max(slowest, r.Mean)
	}
	shown, more := first(c.Ranks, mostTails*mostTails, "ranks")
	for _, r := range shown {
		bars = append(bars, meter{Name: fmt.Sprintf("rank %d", r.Rank), Text: fmt.Sprintf("%s mean, %s longest", step(r.Mean), step(r.Longest)), Class: "plain", Width: percent(r.Mean, slowest)})
	}
	return bars, more
}

func value(v *float64) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return *v, true
}

func lastLoss(c *metrics.Curve) string {
	if len(c.Points) == 0 {
		return ""
	}
	last := c.Points[len(c.Points)-1]
	if last.Loss == nil {
		if last.NotFinite > 0 {
			return "not finite"
		}
		return ""
	}
	return chart.Number(*last.Loss)
}

// step is a step's time to three digits.
func step(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3g s", d.Seconds())
}
