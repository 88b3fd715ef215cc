// Package picture draws what a check of the fabric measured: the bus bandwidth by size
// against the expected one, and that of each rail.
package picture

import (
	"bytes"
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

const (
	width, height = 16 * vg.Centimeter, 10 * vg.Centimeter
	// dots of the PNG, in each inch.
	dots = 110
)

// Files are the picture as SVG and PNG, by their names in the record; none where there
// is nothing to draw.
func Files(r fabric.Report) (map[string][]byte, error) {
	p, drawn, err := bandwidth(r)
	if err != nil || !drawn {
		return nil, err
	}
	pictures := []*plot.Plot{p}
	rails, drawn, err := rails(r)
	if err != nil {
		return nil, err
	}
	if drawn {
		pictures = append(pictures, rails)
	}
	all := height * vg.Length(len(pictures))
	svg, png := vgsvg.New(width, all), vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, all), vgimg.UseDPI(dots))}
	files := map[string][]byte{}
	for name, canvas := range map[string]vg.CanvasWriterTo{agent.FabricSVG: svg, agent.FabricPNG: png} {
		area := draw.NewCanvas(canvas, width, all)
		tiles := draw.Tiles{Rows: len(pictures), Cols: 1, PadX: vg.Millimeter, PadY: vg.Millimeter}
		for row, picture := range pictures {
			picture.Draw(tiles.At(area, 0, row))
		}
		var content bytes.Buffer
		if _, err := canvas.WriteTo(&content); err != nil {
			return nil, fmt.Errorf("drawing %s: %w", name, err)
		}
		files[name] = content.Bytes()
	}
	return files, nil
}

func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Y.Label.Text = "bus bandwidth in GB/s"
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	return p
}

// bandwidth is that of each collective over all ranks, by size.
func bandwidth(r fabric.Report) (p *plot.Plot, drawn bool, err error) {
	p = newPlot("Fabric: " + string(r.Verdict) + ", " + r.Transport)
	p.X.Label.Text = "size"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(sizes(r))
	for i, operation := range []fabric.Operation{fabric.AllReduce, fabric.AllGather, fabric.ReduceScatter, fabric.Broadcast} {
		var points plotter.XYs
		for _, m := range r.Measurements {
			if m.Operation == operation && m.Scope == fabric.World {
				points = append(points, plotter.XY{X: float64(m.Bytes), Y: gbps(m.Bandwidth())})
			}
		}
		if len(points) == 0 {
			continue
		}
		drawn = true
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, false, fmt.Errorf("drawing %s: %w", operation, err)
		}
		line.Color, marks.Color, marks.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
		p.Add(line, marks)
		p.Legend.Add(string(operation), line, marks)
	}
	expect(p, r.Expected)
	p.Legend.Top, p.Legend.Left = true, true
	return p, drawn, nil
}

// rails is a bar for each rail.
func rails(r fabric.Report) (p *plot.Plot, drawn bool, err error) {
	p = newPlot("Each rail by itself")
	var values plotter.Values
	var names []string
	var expected rdma.BytesPerSecond
	for _, rail := range r.Rails {
		if rail.Bandwidth > 0 {
			values, names = append(values, gbps(rail.Bandwidth)), append(names, rail.Name)
			expected = max(expected, rail.Expected)
		}
	}
	if len(values) == 0 {
		return nil, false, nil
	}
	bars, err := plotter.NewBarChart(values, vg.Centimeter)
	if err != nil {
		return nil, false, fmt.Errorf("drawing the rails: %w", err)
	}
	bars.Color = plotutil.Color(0)
	p.Add(bars)
	p.NominalX(names...)
	p.X.Min, p.X.Max = -1, float64(len(values)) // bars are one apart
	expect(p, expected)
	return p, true, nil
}

// expect draws a line at the expected bandwidth.
func expect(p *plot.Plot, expected rdma.BytesPerSecond) {
	if expected == 0 {
		return
	}
	line := plotter.NewFunction(func(float64) float64 { return gbps(expected) })
	line.Color = color.Gray{Y: 90} //nolint:mnd // a grey
	line.Dashes = []vg.Length{vg.Millimeter, vg.Millimeter}
	p.Add(line)
	p.Legend.Add("expected", line)
	p.Legend.Top = true
	p.Y.Max = max(p.Y.Max, gbps(expected)*1.3) //nolint:mnd // room for the legend above it
}

// sizes are the ticks: those that were measured.
func sizes(r fabric.Report) (ticks []plot.Tick) {
	known := map[agent.Bytes]bool{}
	for _, m := range r.Measurements {
		if m.Scope == fabric.World && !known[m.Bytes] {
			known[m.Bytes] = true
			ticks = append(ticks, plot.Tick{Value: float64(m.Bytes), Label: humanize.Bytes(int64(m.Bytes))})
		}
	}
	return ticks
}

func gbps(b rdma.BytesPerSecond) float64 { return float64(b) / float64(rdma.GBps) }
