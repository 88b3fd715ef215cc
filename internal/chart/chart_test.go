// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parse reads a picture, and returns the number of elements by name, and all its text.
func parse(t *testing.T, svg string) (elements map[string]int, texts []string) {
	t.Helper()
	elements = map[string]int{}
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return elements, texts
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
			for _, a := range token.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("<%s %s=%q>: want a number", token.Name.Local, a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			if text := strings.TrimSpace(string(token)); text != "" {
				texts = append(texts, text)
			}
		}
	}
}

func points(values ...float64) (points []Point) {
	for i, v := range values {
		points = append(points, Point{X: float64(i), Y: v})
	}
	return points
}

func TestLines(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, tc := range []struct {
		name   string
		values []float64
		// starts is the number of pieces of the line. marks is the number of marked points; in a long series only isolated
		// points are marked.
		starts, marks, points int
	}{
		{"a line", []float64{3, 2, 1}, 1, 3, 3},
		{"a gap", []float64{3, 2, nan, 1, 1}, 2, 4, 4},
		{"a point between gaps", []float64{3, nan, 2, inf, 1, 1}, 3, 4, 4},
		{"one point", []float64{3}, 1, 1, 1},
		{"all alike", []float64{3, 3, 3}, 1, 3, 3},
		{"many, and two between gaps", append([]float64{3, nan, 2, inf}, make([]float64, mostMarks)...), 3, 2, mostMarks + 2},
		{"huge", []float64{-1e300, 1e300, math.MaxFloat64}, 1, 2, 2},
		{"tiny", []float64{0, math.SmallestNonzeroFloat64}, 1, 2, 2},
		{"closer than a float can tell", []float64{1e16, 1e16 + 2}, 1, 2, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Chart{Title: "loss", Series: []Series{{Name: "loss", Points: points(tc.values...)}}}
			svg := c.SVG()
			elements, _ := parse(t, svg)
			_, line, _ := strings.Cut(svg, `class="line s0" d="`)
			line, _, _ = strings.Cut(line, `"`)
			got := [3]int{strings.Count(line, "M"), strings.Count(svg, `class="mark f0"`), elements["circle"]}
			if diff := cmp.Diff([3]int{tc.starts, tc.marks, tc.points}, got); diff != "" {
				t.Errorf("pieces, marks, points (-want +got):\n%s\n%s", diff, svg)
			}
		})
	}
}

func TestNothingToDraw(t *testing.T) {
	for _, c := range []Chart{{}, {Series: []Series{{Points: points(math.NaN())}}},
		{Y: Axis{Log: true}, Series: []Series{{Points: points(-1)}}}} {
		if !c.Empty() {
			t.Errorf("%v: not empty", c)
		}
		if elements, _ := parse(t, c.SVG()); elements["circle"] != 0 {
			t.Errorf("%v: %d points, want none", c, elements["circle"])
		}
	}
}

func TestText(t *testing.T) {
	c := Chart{Title: "bandwidth <by> size",
		X:      Axis{Label: "size", Log: true, Ticks: []Tick{{8, "8 B"}, {1 << 20, "1.0 MB"}, {1 << 30, "1.1 GB"}}},
		Y:      Axis{Label: "bus bandwidth in GB/s", FromZero: true},
		Levels: []Level{{"expected", 194}},
		Series: []Series{
			{Name: "all_reduce", Points: []Point{{X: 8, Y: 0.1}, {X: 1 << 20, Y: 90}, {X: 1 << 30, Y: 188, Label: "1.1 GB: 188 GB/s"}}},
			{Name: "broad\"cast</svg><script>alert(1)</script>", Points: []Point{{X: 8, Y: 0.1}}},
		}}
	for _, svg := range []string{c.SVG(), c.File()} {
		elements, texts := parse(t, svg)
		if elements["script"] != 0 {
			t.Error("a series' name has become an element")
		}
		for _, want := range []string{"bandwidth <by> size", "size", "bus bandwidth in GB/s", "8 B", "1.1 GB", "0", "200", "all_reduce",
			"expected 194", "all_reduce, 1.1 GB: 188 GB/s", "all_reduce, 8: 0.1"} {
			if !strings.Contains("\n"+strings.Join(texts, "\n")+"\n", "\n"+want+"\n") {
				t.Errorf("no %q in %q", want, texts)
			}
		}
	}
}

func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		axis   Axis
		values []float64
		want   string
	}{
		{Axis{}, []float64{0, 10}, "0 2 4 6 8 10"},
		{Axis{}, []float64{2.29, 10.4}, "2 4 6 8 10 12"},
		{Axis{FromZero: true}, []float64{150, 190}, "0 50 100 150 200"},
		{Axis{}, []float64{-3, 4}, "-4 -2 0 2 4"},
		{Axis{}, []float64{0.00012, 0.00018}, "0.00012 0.00014 0.00016 0.00018"},
		{Axis{}, []float64{0, 120000}, "0 50k 100k 150k"},
		{Axis{}, []float64{7}, "6 6.5 7 7.5 8"},
		{Axis{Log: true}, []float64{0.5, 20000}, "1 10 100 1000 10k"},
		{Axis{Log: true}, []float64{2, 5}, "2 5"},
		{Axis{Ticks: []Tick{{1, "a"}, {2, "b"}, {3, "c"}, {4, "d"}, {5, "e"}, {6, "f"}, {7, "g"}}}, []float64{1, 7}, "a c e g"},
	} {
		const mostTicks = 5
		s := scaleOf(tc.axis, tc.values)
		s.roundOut(mostTicks)
		var got []string
		for _, tick := range s.ticks(mostTicks) {
			got = append(got, tick.Label)
		}
		if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.values, diff)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 2.3456789: "2.346", 1200: "1200", 12300: "12.3k", 4.5e6: "4.5M", -2e9: "-2G",
		1e12: "1e+12", 1e-7: "1e-07"} {
		if got := Number(v); got != want {
			t.Errorf("%g: got %s, want %s", v, got, want)
		}
	}
}

func ExampleChart() {
	c := Chart{Title: "final loss of the last runs", Y: Axis{Label: "loss"}, Levels: []Level{{"tolerated", 2.5}},
		Series: []Series{{Name: "loss", Points: []Point{{X: 1, Y: 2.31, Label: "train-1: 2.31"}, {X: 2, Y: 2.29, Label: "train-2: 2.29"}}}}}
	fmt.Println(strings.Count(c.SVG(), "<circle"), "points")
	// Output: 2 points
}
