// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strconv"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Exit is an error with an exit code. Err is nil if the command has printed the problem already, as a report or in its log.
type Exit struct {
	Code int
	Err  error
	// Told is true if the problem was printed, and Err is only for the results of a step.
	Told bool
}

// Error implements error.
func (e *Exit) Error() string {
	if e.Err == nil {
		return "exit code " + strconv.Itoa(e.Code)
	}
	return e.Err.Error()
}

// Unwrap implements the errors package's interface.
func (e *Exit) Unwrap() error { return e.Err }

// Printed reports whether an error needs no printing: it is an Exit without Err, or with one that was already printed, neither
// joined nor wrapped.
func Printed(err error) bool {
	exit, ok := err.(*Exit) //nolint:errorlint // only the error itself counts
	return ok && (exit.Err == nil || exit.Told)
}

// Usage gives an error with the reason InvalidInput the exit code of wrong usage.
func Usage(err error) error {
	if fail.ReasonOf(err) == fail.InvalidInput {
		return &Exit{Code: WrongUsage, Err: err}
	}
	return err
}
