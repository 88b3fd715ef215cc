package step

import "fmt"

// Want is nil if a condition holds, else the mistake in the flag or argument that breaks it.
func Want(holds bool, format string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, args...)
}
