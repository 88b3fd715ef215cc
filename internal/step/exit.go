package step

import "strconv"

// Exit is an error that decides the program's exit code. Err is nil if the command
// has printed already what is wrong, as a report or in its log.
type Exit struct {
	Code int
	Err  error
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

// Printed reports whether there is nothing left to print of an error: it is an Exit
// without Err. Joined with or wrapped by another one there is.
func Printed(err error) bool {
	exit, ok := err.(*Exit) //nolint:errorlint // only the error itself counts
	return ok && exit.Err == nil
}
