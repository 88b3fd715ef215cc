package agent

import (
	"fmt"
	"os"
	"path/filepath"
)

// OpenSocket returns a name for the Unix socket path that is valid in this process until folder is closed. The kernel refuses
// names of sockets over 107 bytes, so the name goes through the open folder.
func OpenSocket(path string) (name string, folder *os.File, err error) {
	if folder, err = os.Open(filepath.Dir(path)); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)), folder, nil
}
