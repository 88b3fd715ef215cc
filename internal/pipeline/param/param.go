// SPDX-License-Identifier: Apache-2.0

// Package param declares the params of Tasks and Pipelines, each once: its kind, default and help. A step's flag is of the same kind, so a
// value is valid for mlenv, the Action, schedules, preflight and the step, or for none of them.
package param

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Kind is the type of a param. Its errors name the value and what it should be.
type Kind[T any] struct {
	name  string
	parse func(text string) (T, error)
}

// Name describes the kind as flags do: the values with | between them, if there are few.
func (k *Kind[T]) Name() string { return k.name }

// Check returns the mistake in a value.
func (k *Kind[T]) Check(text string) error {
	_, err := k.parse(text)
	return err
}

// AddTo adds a flag of this kind, and sets its default. The flag accepts the default too, valid or not, such as "" for the cluster
// file's value.
func (k *Kind[T]) AddTo(flags *pflag.FlagSet, to *T, name string, value T, usage string) {
	*to = value
	f := &flag[T]{kind: k, to: to}
	f.initial = f.String()
	added := flags.VarPF(f, name, "", usage)
	if _, isBool := any(to).(*bool); isBool {
		added.NoOptDefVal = "true"
	}
}

// flag is a pflag.Value. It keeps an invalid value as a mistake: command.FlagMistakes reports all flags' mistakes at once.
type flag[T any] struct {
	kind    *Kind[T]
	to      *T
	initial string
	mistake error
}

// String implements pflag.Value.
func (f *flag[T]) String() string {
	if f.to == nil {
		return ""
	}
	if list, ok := any(*f.to).([]string); ok {
		return strings.Join(list, ",")
	}
	if n, ok := any(*f.to).(*int); ok {
		if n == nil {
			return ""
		}
		return strconv.Itoa(*n)
	}
	return fmt.Sprint(*f.to)
}

// Set implements pflag.Value.
func (f *flag[T]) Set(text string) error {
	*f.to, f.mistake = f.kind.parse(text)
	if text == f.initial {
		f.mistake = nil
	}
	return nil
}

// Type implements pflag.Value.
func (f *flag[T]) Type() string { return f.kind.name }

// TakeMistake returns the mistake in the value, and forgets it.
func (f *flag[T]) TakeMistake() error {
	err := f.mistake
	f.mistake = nil
	return err
}

// textKind returns the kind of the texts for which check returns nil.
func textKind[T ~string](check func(text string) error) *Kind[T] {
	return &Kind[T]{"string", func(text string) (T, error) { return T(text), check(text) }}
}

// conditionKind returns the kind of the texts for which is returns true; want describes them.
func conditionKind(is func(text string) bool, want string) *Kind[string] {
	return textKind[string](func(text string) error { return mistake(is(text), text, want) })
}

func mistake(valid bool, text, want string) error {
	if valid {
		return nil
	}
	return fmt.Errorf("%q: want %s", text, want)
}

// OneOf returns the kind of a few values.
func OneOf[T ~string](values ...T) *Kind[T] {
	names := humanize.Each(values, func(value T) string { return string(value) })
	return textKind[T](func(text string) error {
		return mistake(slices.Contains(names, text), text, humanize.List(names, "or"))
	}).withName(strings.Join(names, "|"))
}

// withName returns the kind with another name.
func (k *Kind[T]) withName(name string) *Kind[T] { return &Kind[T]{name, k.parse} }

// Wanting returns the kind with another description of its values.
func (k *Kind[T]) Wanting(want string) *Kind[T] {
	return &Kind[T]{k.name, func(text string) (T, error) {
		value, err := k.parse(text)
		return value, mistake(err == nil, text, want)
	}}
}

// number returns the kind of the values that parse accepts, except those for which is returns false.
func number[T any](name, want string, parse func(text string) (T, error), is func(value T) bool) *Kind[T] {
	return &Kind[T]{name, func(text string) (T, error) {
		value, err := parse(text)
		return value, mistake(err == nil && is(value), text, want)
	}}
}
