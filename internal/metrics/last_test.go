// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A training that names its keys after the step writes keys that never come again.
func TestLastIsBounded(t *testing.T) {
	var last Last
	dropped := 0
	lines := Lines(func(line map[string]any) {
		if last.Add(line) != "" {
			dropped++
		}
	})
	before := heap()
	for step := range 3_000 {
		fmt.Fprintf(lines, `{"step": %d, "loss": 2.5, "loss_at_%d": %q, "list_%d": [[%s]]}`+"\n", step, step, strings.Repeat("x", 900), step,
			strings.Repeat("1,", 500)+"1")
	}
	const heapOfKeptKeys = 4 << 20 // a number of a list takes more memory than text; all lists would take ten times as much
	if grown := heap() - before; grown > heapOfKeptKeys {
		t.Errorf("the heap has grown by %d bytes; want at most %d", grown, heapOfKeptKeys)
	}
	if step, ok := Number(last.Values(), "step"); !ok || step != 2_999 {
		t.Errorf("step %v, %v; want the last one", step, ok)
	}
	if len(last.Values()) != MostKeys+2 || dropped != 1 {
		t.Errorf("%d keys, %d reports; want %d and one", len(last.Values()), dropped, MostKeys+2)
	}
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestLastAdd(t *testing.T) {
	long := strings.Repeat("k", MostKey+1)
	for _, tc := range []struct {
		name    string
		lines   []map[string]any
		want    map[string]any
		dropped string
	}{
		{"the last value of each", []map[string]any{{"a": 1.0, "b": 1.0}, {"a": 2.0}}, map[string]any{"a": 2.0, "b": 1.0}, ""},
		{"a long name", []map[string]any{{long: 1.0, "a": 1.0}}, map[string]any{"a": 1.0}, "its name"},
		{"a long text", []map[string]any{{"a": strings.Repeat("x", MostValue), "b": 1.0}}, map[string]any{"b": 1.0}, "its value"},
		{"a deep list", []map[string]any{{"a": []any{[]any{strings.Repeat("x", MostValue)}}}}, map[string]any{}, "its value"},
		{"an outdated value", []map[string]any{{"a": 1.0}, {"a": strings.Repeat("x", 2*MostValue)}}, map[string]any{}, "its value"},
		{"the ranks' times are read elsewhere", []map[string]any{{"rank_seconds": []any{strings.Repeat("x", 2*MostValue)}}}, map[string]any{},
			""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var last Last
			reports := ""
			for _, line := range tc.lines {
				reports += last.Add(line)
			}
			if diff := cmp.Diff(tc.want, last.Values()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (reports == "") != (tc.dropped == "") || !strings.Contains(reports, tc.dropped) {
				t.Errorf("reported %q, want %q", reports, tc.dropped)
			}
		})
	}
}

// FuzzLast checks that no sequence of lines passes the bounds, and that the defined keys always pass.
func FuzzLast(f *testing.F) {
	f.Add("{\"step\": 1}\n{\"a\": [1, {\"b\": \"c\"}]}\n", uint8(3))
	f.Add("{\"\\u0000\": NaN, \"x\": {\"x\": {\"x\": []}}}\n", uint8(200))
	f.Fuzz(func(t *testing.T, text string, copies uint8) {
		var last Last
		reports := 0
		n := 0
		lines := Lines(func(line map[string]any) {
			for key, value := range line { // as many keys as the bound allows
				n++
				line[fmt.Sprint(key, n)] = value
				break
			}
			if last.Add(line) != "" {
				reports++
			}
		})
		for range copies {
			_, _ = io.WriteString(lines, text)
		}
		lines.Flush()
		if reports > 1 || last.others < 0 || last.others > MostKeys || len(last.Values()) > MostKeys+len(Defined()) {
			t.Fatalf("%d reports, %d of %d keys are not defined ones", reports, last.others, len(last.Values()))
		}
		for key, value := range last.Values() {
			// A list has one comma less than sizeOf counts.
			content, err := json.Marshal(value)
			if f, number := value.(float64); err != nil && !(number && math.IsInf(f, 0)) {
				t.Fatal(err)
			}
			if len(key) > MostKey || len(content) > 6*MostValue { // <, > and & are longer as Go writes them
				t.Fatalf("key of %d bytes, value of %d", len(key), len(content))
			}
		}
	})
}

// TestSource: steps that a framework has counted are named as such only until the training counts them itself.
func TestSource(t *testing.T) {
	var last Last
	last.Add(map[string]any{"step": 1.0, "source": "DeepSpeed"})
	if got := AtStep(1, 0, last.Values()["source"]); got != "step 1 (from DeepSpeed)" {
		t.Errorf("got %q", got)
	}
	last.Add(map[string]any{"loss": 3.5})
	if last.Values()["source"] != "DeepSpeed" {
		t.Errorf("a line without a step changed the source: %v", last.Values())
	}
	last.Add(map[string]any{"step": 2.0, "loss": 3.4})
	if got := AtStep(2, 0, last.Values()["source"]); got != "step 2" {
		t.Errorf("got %q", got)
	}
}
