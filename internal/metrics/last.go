// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Bounds of what every reader keeps of a training's own metrics; docs/reference/metrics.md names them.
const (
	// MostKeys bounds the keys in addition to the defined ones.
	MostKeys = 200
	// MostKey bounds a key, in bytes.
	MostKey = 200
	// MostValue bounds a value as JSON, in bytes.
	MostValue = 1 << 10
)

// Defined returns the keys with a meaning of their own, the most important one first.
func Defined() []string {
	return []string{"step", "steps", "loss", "tokens", "samples", "source", "bar", "time"}
}

// AtStep returns how far a training is, such as "step 40 of 100 (from transformers)". steps is 0 if it is not known, and source is empty
// for a training that measures itself.
func AtStep(step, steps float64, source any) string {
	text := fmt.Sprintf("step %.0f", step)
	if steps > 0 {
		text += fmt.Sprintf(" of %.0f", steps)
	}
	if source, ok := source.(string); ok && source != "" {
		text += fmt.Sprintf(" (from %s)", humanize.OneLine(source, 20))
	}
	return text
}

// rankSeconds is the key whose list grows with the number of ranks. Its readers take it from the lines.
const rankSeconds = "rank_seconds"

// Last keeps the last value of each metric in bounded memory: a training may invent keys without end.
type Last struct {
	values   map[string]any
	others   int
	reported bool
}

// Values returns the last values. The caller must not change them.
func (l *Last) Values() map[string]any { return l.values }

// Add takes the values of a line. It explains the first value that is not kept, and returns "" from then on.
func (l *Last) Add(line map[string]any) (dropped string) {
	if l.values == nil {
		l.values = map[string]any{}
	}
	if _, counted := line["step"]; counted {
		delete(l.values, "source") // a training that counts its steps itself names none
	}
	for _, key := range slices.Sorted(maps.Keys(line)) {
		why := l.set(key, line[key])
		if why != "" && !l.reported && key != rankSeconds {
			l.reported = true
			dropped = fmt.Sprintf("Some metrics of the training are not kept, %q first: %s.", humanize.OneLine(key, 50), why)
		}
	}
	return dropped
}

// set returns why the value is not kept, "" if it is. An outdated value is worse than none.
func (l *Last) set(key string, value any) (why string) {
	_, known := l.values[key]
	defined := slices.Contains(Defined(), key)
	switch {
	case sizeOf(value, MostValue) > MostValue:
		why = fmt.Sprintf("its value has more than %s", humanize.Bytes(MostValue))
	case len(key) > MostKey:
		why = fmt.Sprintf("its name has more than %d bytes", MostKey)
	case !known && !defined && l.others == MostKeys:
		why = fmt.Sprintf("the training has written more than %d keys", MostKeys)
	}
	switch {
	case why == "":
		l.values[key] = value
		if !known && !defined {
			l.others++
		}
	case known:
		delete(l.values, key)
		if !defined {
			l.others--
		}
	}
	return why
}

// Bounded returns what Last keeps of one line.
func Bounded(line map[string]any) map[string]any {
	var l Last
	l.Add(line)
	return l.Values()
}

// sizeOf returns the size of a value as JSON in bytes, or any number above most.
func sizeOf(value any, most int) (size int) {
	switch v := value.(type) {
	case string:
		if len(v) > most {
			return len(v)
		}
	case []any:
		size = len("[]")
		for _, element := range v {
			if size += sizeOf(element, most-size) + len(","); size > most {
				return size
			}
		}
		return size
	case map[string]any:
		size = len("{}")
		for key, element := range v {
			if size += len(key) + len(`"":,`) + sizeOf(element, most-size); size > most {
				return size
			}
		}
		return size
	}
	text, _ := json.Marshal(value) // it was read as JSON
	return len(text)
}
