// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		text string
		want Rule
		// as is how the rule is printed, "" for as it was written.
		as string
	}{
		{"loss is nan", NaN{}, ""},
		{"  loss   is nan\r", NaN{}, "loss is nan"},
		{"loss > 20 after 100 steps", Above{20, 100}, ""},
		{"loss > -1.5 after 0 steps", Above{-1.5, 0}, ""},
		{"loss > 2.50e1 after 1 steps", Above{25, 1}, "loss > 25 after 1 steps"},
		{"step_time > 2x median for 10m", Slow{2, 10 * time.Minute}, ""},
		{"step_time > 1.25x median for 90s", Slow{1.25, 90 * time.Second}, "step_time > 1.25x median for 1m30s"},
		{"no checkpoint for 2h", Unsaved{2 * time.Hour}, ""},
		{"no checkpoint for 120m", Unsaved{2 * time.Hour}, "no checkpoint for 2h"},
		{"gpu_use < 5% for 20m", Idle{5, 20 * time.Minute}, ""},
		{"gpu_use < 0.5% for 1h30m", Idle{0.5, 90 * time.Minute}, ""},
		{"gpu_use < 100% for 1s", Idle{100, time.Second}, ""},
	} {
		got, err := Parse(tc.text)
		if err != nil || got != tc.want {
			t.Errorf("%q: %#v, %v; want %#v", tc.text, got, err, tc.want)
			continue
		}
		as := tc.as
		if as == "" {
			as = tc.text
		}
		if got.String() != as {
			t.Errorf("%q prints %q, want %q", tc.text, got, as)
		}
	}
}

func TestMistakes(t *testing.T) {
	for text, want := range map[string][]string{
		"": {`"": want loss is nan, loss > 20 after 100 steps, step_time > 2x median for 10m, no checkpoint for ` +
			`2h or gpu_use < 5% for 20m, with your own numbers`},
		"loss":                           {"want loss is nan, "},
		"loss is NaN":                    {"want loss is nan, "},
		"loss is nan or loss is nan":     {"want loss is nan, "},
		"accuracy is nan":                {"want loss is nan, "},
		"loss > 20":                      {"want loss is nan, "},
		"loss>20 after 100 steps":        {"want loss is nan, "},
		"loss < 20 after 100 steps":      {"want loss is nan, "},
		"loss > 20 after 100 steps now":  {"want loss is nan, "},
		"no checkpoint":                  {"no checkpoint for 2h or gpu_use < 5% for 20m"},
		"loss > x after y steps":         {"x: want a number, as in 20", "y: want a whole number of steps, as in 100"},
		"loss > nan after -1 steps":      {"nan: want a number", "-1: want a whole number"},
		"loss > 0x10 after 1.5 steps":    {"0x10: want a number", "1.5: want a whole number"},
		"loss > 1e999 after 1e3 steps":   {"1e999: want a number", "1e3: want a whole number"},
		"step_time > 2 median for 10":    {"2: want a factor above 1, as in 2x", "10: want a duration above 0, as in 20m or 2h"},
		"step_time > 1x median for -10m": {"1x: want a factor", "-10m: want a duration"},
		"step_time > infx median for 0s": {"infx: want a factor", "0s: want a duration"},
		"no checkpoint for 1d":           {"1d: want a duration"},
		"gpu_use < 5 for soon":           {"5: want a percentage above 0%, as in 5%", "soon: want a duration"},
		"gpu_use < 0% for 1m":            {"0%: want a percentage"},
		"gpu_use < 101% for 1m":          {"101%: want a percentage"},
	} {
		rule, err := Parse(text)
		if err == nil {
			t.Errorf("%q: %#v, want a mistake", text, rule)
			continue
		}
		for _, part := range append(want, fmt.Sprintf("%q: ", text)) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v; want %q in it", text, err, part)
			}
		}
	}
}

// A flag takes the valid rules and reports all others at once.
func TestList(t *testing.T) {
	var l List
	for _, text := range []string{"loss is nan", "loss is inf", "no checkpoint for 2h", "no checkpoint for 0s"} {
		if err := l.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]Rule{NaN{}, Unsaved{2 * time.Hour}}, l.Rules); diff != "" || l.String() != "loss is nan, no checkpoint for 2h" {
		t.Errorf("it prints %q; rules (-want +got):\n%s", &l, diff)
	}
	err := l.TakeMistake()
	if err == nil || !strings.Contains(err.Error(), `"loss is inf": want loss is nan, loss > 20`) ||
		!strings.HasSuffix(err.Error(), `; "no checkpoint for 0s": 0s: want a duration above 0, as in 20m or 2h`) {
		t.Errorf("got %v, want both mistakes", err)
	}
	if err := l.TakeMistake(); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestConflicts(t *testing.T) {
	stop, restart := Valid([]string{"loss is nan", "no checkpoint for 60m", "wrong"}), Valid(
		[]string{"no checkpoint for 1h", "gpu_use < 5% for 20m"})
	for _, tc := range []struct {
		stop, restart []Rule
		maxRestarts   int
		want          []string
	}{
		{nil, nil, 0, nil},
		{stop, nil, 0, nil},
		{nil, restart, 1, nil},
		{nil, restart, 0, []string{"restart-if has rules and max-restarts is 0: want max-restarts of at least 1, or the rules in stop-if"}},
		{stop, restart, 0, []string{"restart-if has rules and max-restarts is 0: want max-restarts of at least 1, or the rules in stop-if",
			`rule "no checkpoint for 1h" is in stop-if and in restart-if: want it in one of them`}},
	} {
		var got []string
		for _, err := range Conflicts(tc.stop, tc.restart, tc.maxRestarts) {
			got = append(got, err.Error())
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%v and %v with %d restarts: %q, want %q", tc.stop, tc.restart, tc.maxRestarts, got, tc.want)
		}
	}
}

// Whatever Parse takes, it prints as a text that is the same rule.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"loss is nan", "loss > 20 after 100 steps", "step_time > 2x median for 10m", "no checkpoint for 2h",
		"gpu_use < 5% for 20m"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rule, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(rule.String()); err != nil || again != rule {
			t.Errorf("%q is %#v, and %q is %#v, %v", text, rule, rule, again, err)
		}
	})
}
