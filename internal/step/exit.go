package step

import "strconv"

// Interrupted is the exit code of what somebody cancelled: 128 and SIGINT's number, as shells have it.
const Interrupted = 130

// Exit is an error that says with which code the program is to end. Err is nil
// where what is wrong has been told already.
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
