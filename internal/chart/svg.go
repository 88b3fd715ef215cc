// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Sizes in units of the view. On a phone a unit is a little less than a pixel.
const (
	width      = 400.0
	left       = 50.0
	right      = 12.0
	top        = 24.0
	plotHeight = 180.0
	lineHeight = 17.0
	// letter is the width of a character in a wide font.
	letter = 7.4
	styles = 8
	// mostMarks is the number of points above which only those without neighbors are marked.
	mostMarks = 48
)

// CSS is the style of the charts of a page.
const CSS = `.chart{display:block;width:100%;height:auto;font:12px system-ui,sans-serif;
--chart-ink:#24292f;--chart-faint:#d0d7de;--chart-paper:#fff;
--chart-0:#0550ae;--chart-1:#bc4c00;--chart-2:#116329;--chart-3:#8250df;
--chart-4:#a40e26;--chart-5:#1b7c83;--chart-6:#9a6700;--chart-7:#57606a}
@media screen and (prefers-color-scheme:dark){.chart{--chart-ink:#e6edf3;--chart-faint:#3d444d;--chart-paper:#0d1117;
--chart-0:#79c0ff;--chart-1:#ffa657;--chart-2:#7ee787;--chart-3:#d2a8ff;
--chart-4:#ff7b72;--chart-5:#76e3ea;--chart-6:#e3b341;--chart-7:#b1bac4}}
.chart text{fill:var(--chart-ink)}
.chart .grid{stroke:var(--chart-faint);stroke-width:1}
.chart .level{stroke:var(--chart-ink);stroke-width:1.5;stroke-dasharray:2 3;fill:none}
.chart .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.chart .mark{stroke:var(--chart-paper);stroke-width:1}
.chart .hover{fill-opacity:0}
.chart .hover:hover{fill-opacity:1}
.chart .s0{stroke:var(--chart-0)}.chart .s1{stroke:var(--chart-1);stroke-dasharray:6 4}
.chart .s2{stroke:var(--chart-2);stroke-dasharray:2 4}.chart .s3{stroke:var(--chart-3);stroke-dasharray:9 3 2 3}
.chart .s4{stroke:var(--chart-4);stroke-dasharray:12 4}.chart .s5{stroke:var(--chart-5);stroke-dasharray:4 2 1 2}
.chart .s6{stroke:var(--chart-6);stroke-dasharray:1 3}.chart .s7{stroke:var(--chart-7);stroke-dasharray:8 2}
.chart .f0{fill:var(--chart-0)}.chart .f1{fill:var(--chart-1)}.chart .f2{fill:var(--chart-2)}.chart .f3{fill:var(--chart-3)}
.chart .f4{fill:var(--chart-4)}.chart .f5{fill:var(--chart-5)}.chart .f6{fill:var(--chart-6)}.chart .f7{fill:var(--chart-7)}
`

// SVG returns the chart as an element of a page with CSS.
func (c *Chart) SVG() string { return c.draw("") }

// File returns the chart as a file, with its style and a background.
func (c *Chart) File() string {
	return c.draw("<style>" + CSS + "</style><rect width=\"100%\" height=\"100%\" style=\"fill:var(--chart-paper)\"/>\n")
}

type canvas struct {
	*strings.Builder
	chart *Chart
	x, y  scale
}

func (c *Chart) draw(head string) string {
	b := &strings.Builder{}
	var xs, ys []float64
	for _, s := range c.Series {
		for _, p := range s.Points {
			if c.inRange(p) {
				xs, ys = append(xs, p.X), append(ys, p.Y)
			}
		}
	}
	for _, l := range c.Levels {
		ys = append(ys, l.Y)
	}
	on := canvas{b, c, scaleOf(c.X, xs), scaleOf(c.Y, ys)}
	const rows = 5
	on.y.roundOut(rows)
	legend := c.legend()
	height := top + plotHeight + 2*lineHeight + float64(len(legend))*lineHeight + 8
	fmt.Fprintf(b, `<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 %g %g"><title>%s</title>`+"\n", width,
		height, escape(c.Title))
	b.WriteString(head)
	on.axes(rows)
	for _, l := range c.Levels {
		if c.Y.has(l.Y) {
			fmt.Fprintf(b, `<path class="level" d="M%g %.1fH%g"/>`+"\n", left, on.down(l.Y), width-right)
		}
	}
	for i, s := range c.Series {
		on.series(i%styles, s)
	}
	legend.draw(b, top+plotHeight+2*lineHeight+lineHeight)
	b.WriteString("</svg>\n")
	return b.String()
}

func (on canvas) across(x float64) float64 { return left + on.x.position(x)*(width-left-right) }
func (on canvas) down(y float64) float64   { return top + (1-on.y.position(y))*plotHeight }

func (on canvas) axes(rows int) {
	for _, t := range on.y.ticks(rows) {
		fmt.Fprintf(on, `<path class="grid" d="M%g %.1fH%g"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, on.down(t.Value), width-right, left-5, on.down(t.Value)+4, escape(short(t.Label, letters(left-5))))
	}
	fmt.Fprintf(on, `<text x="4" y="13">%s</text>`+"\n", escape(short(on.chart.Y.Label, letters(width))))
	const columns, base = 6, top + plotHeight + lineHeight - 3
	begin := width + letter // of the label to the right; the last labels matter most
	for _, t := range slices.Backward(on.x.ticks(columns)) {
		at := on.across(t.Value)
		fmt.Fprintf(on, `<path class="grid" d="M%.1f %gV%g"/>`, at, top, top+plotHeight)
		label := short(t.Label, letters(width/columns)+8)
		half := float64(utf8.RuneCountInString(label)) * letter / 2
		middle := max(half, min(at, width-half))
		if middle+half > begin-letter {
			continue
		}
		begin = middle - half
		fmt.Fprintf(on, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`+"\n", middle, base, escape(label))
	}
	fmt.Fprintf(on, `<text x="%g" y="%g" text-anchor="end">%s</text>`+"\n", width-right, base+lineHeight,
		escape(short(on.chart.X.Label, letters(width))))
}

func (on canvas) series(style int, s Series) {
	var path strings.Builder
	count := 0
	drawn := func(i int) bool { return i >= 0 && i < len(s.Points) && on.chart.inRange(s.Points[i]) }
	for i, p := range s.Points {
		if !drawn(i) {
			continue
		}
		count++
		command := "M"
		if drawn(i - 1) {
			command = "L"
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", command, on.across(p.X), on.down(p.Y))
	}
	if count == 0 {
		return
	}
	fmt.Fprintf(on, `<path class="line s%d" d="%s"/>`+"\n", style, path.String())
	for i, p := range s.Points {
		if !drawn(i) {
			continue
		}
		class := "mark"
		alone := !drawn(i-1) && !drawn(i+1)
		if !alone && count > mostMarks {
			class = "hover"
		}
		label := p.Label
		if label == "" {
			label = on.x.labelOf(p.X) + ": " + on.y.labelOf(p.Y)
		}
		if len(on.chart.Series) > 1 {
			label = s.Name + ", " + label
		}
		fmt.Fprintf(on, `<circle class="%s f%d" cx="%.1f" cy="%.1f" r="4"><title>%s</title></circle>`+"\n", class, style, on.across(p.X),
			on.down(p.Y), escape(label))
	}
}

type entry struct{ class, name string }

type legend [][]entry

const (
	// sample is the width of the line before a name, gap the space between entries.
	sample, gap = 24.0, 14.0
)

func (c *Chart) legend() (rows legend) {
	var all []entry
	for i, s := range c.Series {
		all = append(all, entry{fmt.Sprintf("line s%d", i%styles), short(s.Name, 48)})
	}
	for _, l := range c.Levels {
		text := scale{Axis: c.Y}.labelOf(l.Y)
		all = append(all, entry{"level", short(l.Name, 36) + " " + text})
	}
	// A single line needs no name next to the title and the axis.
	if len(all) < 2 && len(c.Levels) == 0 {
		return nil
	}
	used := width
	for _, e := range all {
		wide := e.width()
		if used+wide > width-right {
			rows, used = append(rows, nil), left
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], e)
		used += wide
	}
	return rows
}

func (e entry) width() float64 { return sample + float64(utf8.RuneCountInString(e.name))*letter + gap }

func (l legend) draw(b *strings.Builder, y float64) {
	for i, row := range l {
		x := left
		for _, e := range row {
			at := y + float64(i)*lineHeight
			fmt.Fprintf(b, `<path class="%s" d="M%.1f %.1fh%g"/><text x="%.1f" y="%.1f">%s</text>`+"\n", e.class, x, at-4, sample-5, x+sample, at,
				escape(e.name))
			x += e.width()
		}
	}
}

func short(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder does not fail
	return b.String()
}

func letters(wide float64) int { return int(wide / letter) }
