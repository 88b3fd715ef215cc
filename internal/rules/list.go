// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// List has the rules of a param. As a flag it takes one rule each time it is given; command.FlagMistakes reports the invalid ones.
type List struct {
	Rules    []Rule
	mistakes []error
}

// String implements pflag.Value.
func (l *List) String() string {
	return strings.Join(humanize.Each(l.Rules, Rule.String), ", ")
}

// Set implements pflag.Value.
func (l *List) Set(text string) error {
	rule, err := Parse(text)
	if err != nil {
		l.mistakes = append(l.mistakes, err)
		return nil
	}
	l.Rules = append(l.Rules, rule)
	return nil
}

// Type implements pflag.Value.
func (l *List) Type() string { return "rule" }

// TakeMistake returns the mistakes in the rules so far, and forgets them.
func (l *List) TakeMistake() error {
	texts := humanize.Each(l.mistakes, error.Error)
	l.mistakes = nil
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// Conflicts returns the mistakes in the params of a training that no single rule shows.
func Conflicts(stopIf, restartIf []Rule, maxRestarts int) (mistakes []error) {
	if len(restartIf) > 0 && maxRestarts == 0 {
		mistakes = append(mistakes, errors.New("restart-if has rules and max-restarts is 0: want max-restarts of at least 1, or the rules in "+
			"stop-if"))
	}
	stops := map[Rule]bool{}
	for _, rule := range stopIf {
		stops[rule] = true
	}
	for _, rule := range restartIf {
		if stops[rule] {
			mistakes = append(mistakes, fmt.Errorf("rule %q is in stop-if and in restart-if: want it in one of them", rule))
		}
	}
	return mistakes
}

// Valid returns the rules in texts, without the invalid ones.
func Valid(texts []string) (valid []Rule) {
	for _, text := range texts {
		if rule, err := Parse(text); err == nil {
			valid = append(valid, rule)
		}
	}
	return valid
}
