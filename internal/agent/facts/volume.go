// Package facts reads what a node is and has: its memory, GPUs and volumes.
package facts

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// volumeID names the file that tells volumes apart.
const volumeID = ".mlenv-volume-id"

// Volume describes the volume mounted at dir. The first node that looks writes
// an identity into it, so that nodes can tell whether they share it.
func Volume(dir string) agent.Volume {
	volume := Space(dir)
	if volume.Problem != "" {
		return volume
	}
	path := filepath.Join(dir, volumeID)
	id, err := identity(path)
	switch {
	case err != nil:
		volume.Problem = err.Error()
	case id == "":
		volume.Problem = path + " is empty: remove it, and it is made anew"
	}
	volume.ID = id
	return volume
}

// Space is the size of the volume mounted at dir and what is free of it, without an
// identity.
func Space(dir string) agent.Volume {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return agent.Volume{Problem: fmt.Sprintf("reading the size of %s: %v", dir, err)}
	}
	return agent.Volume{Size: agent.Bytes(stat.Blocks) * agent.Bytes(stat.Bsize), Free: agent.Bytes(stat.Bavail) * agent.Bytes(stat.Bsize)}
}

// identity reads the file, or makes it. It appears whole by a link, which fails
// where another node was first, on shared file systems too.
func identity(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(content)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	temporary := path + "." + rand.Text()
	defer os.Remove(temporary)
	if err := os.WriteFile(temporary, []byte(rand.Text()+"\n"), 0o664); err != nil {
		return "", err
	}
	if err := os.Link(temporary, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	content, err = os.ReadFile(path)
	return strings.TrimSpace(string(content)), err
}
