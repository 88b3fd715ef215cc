// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// OpenSocket returns a name for the Unix socket path that is valid in this process until folder is closed. The kernel refuses
// names of sockets over 107 bytes, so the name goes through the open folder.
func OpenSocket(path string) (name string, folder *os.File, err error) {
	//nolint:forbidigo // a FIFO is not a folder, so it does not block
	folder, err = os.OpenFile(filepath.Dir(path), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)), folder, nil
}
