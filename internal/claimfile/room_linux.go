// SPDX-License-Identifier: Apache-2.0

package claimfile

import (
	"errors"
	"os"
	"syscall"
)

// take takes room of the file's volume. Allocating is faster than writing, but not every file system can: NFS before 4.2, for example.
func take(file *os.File, size int) error {
	for size > 0 {
		err := syscall.Fallocate(int(file.Fd()), 0, 0, int64(size))
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EOPNOTSUPP):
			return writeRoom(file, size)
		case !errors.Is(err, syscall.EINTR): // as with tmpfs
			return &os.PathError{Op: "fallocate", Path: file.Name(), Err: err}
		}
	}
	return writeRoom(file, size)
}
