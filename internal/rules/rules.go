// SPDX-License-Identifier: Apache-2.0

// Package rules reads the rules that end a training which has become pointless: the items of the params stop-if and restart-if.
package rules

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Rule is one of the types below. String returns it as users write it.
type Rule interface{ String() string }

// NaN is met by a loss that is NaN.
type NaN struct{}

// Above is met by a loss above Limit once the training has done After steps.
type Above struct {
	Limit float64
	After int
}

// Slow is met if every step takes longer than Factor times the median of the steps before, for a time.
type Slow struct {
	Factor float64
	For    time.Duration
}

// Unsaved is met if no checkpoint is completed for a time.
type Unsaved struct{ For time.Duration }

// Idle is met if the mean use of all GPUs is below Percent for a time.
type Idle struct {
	Percent float64
	For     time.Duration
}

func (NaN) String() string { return "loss is nan" }

func (r Above) String() string {
	return fmt.Sprintf("loss > %s after %d steps", short(r.Limit), r.After)
}

func (r Slow) String() string {
	return fmt.Sprintf("step_time > %sx median for %s", short(r.Factor), span(r.For))
}

func (r Unsaved) String() string { return "no checkpoint for " + span(r.For) }

func (r Idle) String() string {
	return fmt.Sprintf("gpu_use < %s%% for %s", short(r.Percent), span(r.For))
}

// span returns a duration as users write it: 2h and not 2h0m0s.
func span(d time.Duration) string {
	text := d.String()
	for _, nothing := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, nothing) {
			text = text[:len(text)-len("0s")]
		}
	}
	return text
}

func short(n float64) string { return strconv.FormatFloat(n, 'g', -1, 64) }

// form is one form of a rule. In its words, # stands for a value.
type form struct {
	words string
	rule  func(v *values) Rule
}

// Forms describes the rules for users.
const Forms = "loss is nan, loss > 20 after 100 steps, step_time > 2x median for 10m, no checkpoint for 2h or gpu_use < 5% for 20m, with " +
	"your own numbers"

var forms = []form{
	{"loss is nan", func(*values) Rule { return NaN{} }},
	{"loss > # after # steps", func(v *values) Rule { return Above{Limit: v.limit(), After: v.count()} }},
	{"step_time > # median for #", func(v *values) Rule {
		return Slow{Factor: v.factor(), For: v.duration()}
	}},
	{"no checkpoint for #", func(v *values) Rule { return Unsaved{For: v.duration()} }},
	{"gpu_use < # for #", func(v *values) Rule { return Idle{Percent: v.percent(), For: v.duration()} }},
}

// Parse returns the rule that a text is. The error names the text and every mistake in it.
func Parse(text string) (Rule, error) {
	for _, f := range forms {
		v, ok := f.match(strings.Fields(text))
		if !ok {
			continue
		}
		rule := f.rule(v)
		if len(v.mistakes) > 0 {
			return nil, fmt.Errorf("%q: %s", text, strings.Join(v.mistakes, "; "))
		}
		return rule, nil
	}
	return nil, fmt.Errorf("%q: want %s", text, Forms)
}

// match returns the values in the words of a text, if it has the form.
func (f form) match(words []string) (v *values, ok bool) {
	wanted := strings.Fields(f.words)
	if len(words) != len(wanted) {
		return nil, false
	}
	v = &values{}
	for i, want := range wanted {
		switch {
		case want == "#":
			v.texts = append(v.texts, words[i])
		case want != words[i]:
			return nil, false
		}
	}
	return v, true
}

// values reads the values of a rule one after the other, and collects the mistakes in them.
type values struct {
	texts    []string
	mistakes []string
}

func (v *values) next() string {
	text := v.texts[0]
	v.texts = v.texts[1:]
	return text
}

func (v *values) want(valid bool, text, want string) {
	if !valid {
		v.mistakes = append(v.mistakes, fmt.Sprintf("%s: want %s", text, want))
	}
}

// decimal matches the numbers of rules. strconv.ParseFloat also reads inf, nan and hexadecimal ones.
var decimal = regexp.MustCompile(`^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$`)

func number(text string) (n float64, ok bool) {
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil && decimal.MatchString(text)
}

func (v *values) limit() float64 {
	text := v.next()
	n, ok := number(text)
	v.want(ok, text, "a number, as in 20")
	return n
}

func (v *values) count() int {
	text := v.next()
	n, err := strconv.ParseUint(text, 10, 32)
	v.want(err == nil && n <= math.MaxInt32, text, "a whole number of steps, as in 100")
	return int(n)
}

func (v *values) factor() float64 {
	text := v.next()
	digits, ok := strings.CutSuffix(text, "x")
	n, isNumber := number(digits)
	v.want(ok && isNumber && n > 1, text, "a factor above 1, as in 2x")
	return n
}

func (v *values) percent() float64 {
	text := v.next()
	digits, ok := strings.CutSuffix(text, "%")
	n, isNumber := number(digits)
	v.want(ok && isNumber && n > 0 && n <= 100, text, "a percentage above 0%, as in 5%")
	return n
}

func (v *values) duration() time.Duration {
	text := v.next()
	d, err := time.ParseDuration(text)
	v.want(err == nil && d > 0, text, "a duration above 0, as in 20m or 2h")
	return d
}
