// SPDX-License-Identifier: Apache-2.0

// Package fail has errors with a reason from a closed list and the next step.
package fail

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Error is a failure with its reason.
type Error struct {
	Reason Reason
	// Err names the object, and what was seen and expected.
	Err error
	// Next is the command or action that shows or fixes the problem. It may be empty.
	Next string
	// Tail are the last lines of the program that failed, if there is one.
	Tail []string
}

// Error implements error. The reason and the next step are shown apart.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap implements the errors package's interface.
func (e *Error) Unwrap() error { return e.Err }

// Because gives err a reason.
func Because(reason Reason, err error) error {
	return &Error{Reason: reason, Err: err}
}

// Becausef is Because with a formatted error; %w wraps.
func Becausef(reason Reason, format string, args ...any) error {
	return &Error{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// Advise adds what to do next. It keeps the reason that err has, if any.
func Advise(err error, format string, args ...any) error {
	return &Error{Reason: ReasonOf(err), Err: err, Next: fmt.Sprintf(format, args...)}
}

// WithTail adds the last lines of the program that failed.
func WithTail(err error, lines []string) error {
	return &Error{Reason: ReasonOf(err), Err: err, Tail: lines}
}

// Details returns the text of err with the last lines of the program that failed.
func Details(err error) string {
	for e := range chain(err) {
		if len(e.Tail) > 0 {
			return err.Error() + "\nits last lines:\n  " + strings.Join(e.Tail, "\n  ")
		}
	}
	return err.Error()
}

// ReasonOf returns the outermost reason in err's chain, Internal if it has none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return Internal
}

// NextOf returns the outermost advice in err. If errors were joined, it returns the outermost advice of each on a line of its own.
func NextOf(err error) string { return strings.Join(NextsOf(err), "\n") }

// NextsOf returns the different advices in err: the outermost one of each of the errors that were joined.
func NextsOf(err error) (all []string) {
	if e, ok := err.(*Error); ok && e.Next != "" { //nolint:errorlint // it goes down step by step
		return []string{e.Next}
	}
	switch wrapper := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		if within := wrapper.Unwrap(); within != nil {
			return NextsOf(within)
		}
	case interface{ Unwrap() []error }:
		for _, each := range wrapper.Unwrap() {
			for _, next := range NextsOf(each) {
				if !slices.Contains(all, next) {
					all = append(all, next)
				}
			}
		}
	}
	return all
}

// chain returns the Errors in err's chain, the outermost first.
func chain(err error) iter.Seq[*Error] {
	return func(yield func(*Error) bool) {
		for e := (*Error)(nil); errors.As(err, &e) && yield(e); err = e.Err {
		}
	}
}
