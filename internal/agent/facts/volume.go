// SPDX-License-Identifier: Apache-2.0

// Package facts reads the memory, GPUs and volumes of a node.
package facts

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// volumeID is the name of the file that identifies a volume.
const volumeID = ".mlenv-volume-id"

// Volume describes the volume mounted at dir. The first node writes an identity into it, which shows the others whether they
// share it; then each creates and removes a file.
func Volume(dir string) agent.Volume {
	volume := VolumeSpace(dir)
	if volume.Problem != "" {
		return volume
	}
	id, err := volumeIdentity(dir)
	if err == nil {
		err = mayWrite(dir)
	}
	if err != nil {
		volume.Problem = err.Error()
	} else {
		volume.ID = id
	}
	return volume
}

// stateFolder is the agent's own folder in a volume. It belongs to the user of the pods that created it.
const stateFolder = ".mlenv"

// mayWrite creates files where runs do, because an identity that another user wrote can be read anyway. Only a refusal counts:
// a full volume can be tidied up from the nodes, and one that is mounted read-only is meant to be.
func mayWrite(dir string) error {
	for _, folder := range []string{dir, filepath.Join(dir, stateFolder)} {
		path := filepath.Join(folder, volumeID+"."+rand.Text())
		file, err := claimfile.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("creating a file: %w", err)
		case err == nil:
			file.Close()
			if err := os.Remove(path); errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("removing a file: %w", err)
			}
		}
	}
	return nil
}

// volumeIdentity skips what is no identity, such as an empty file that a crash left: nothing is removed, so all nodes skip the
// same files.
func volumeIdentity(dir string) (string, error) {
	const most = 10
	for i := range most {
		path := filepath.Join(dir, volumeID)
		if i > 0 {
			path += fmt.Sprintf("-%d", i)
		}
		id, err := identity(path)
		if validIdentity.MatchString(id) {
			return id, nil
		}
		if err != nil && !errors.Is(err, claimfile.ErrNotRegular) && !errors.Is(err, claimfile.ErrTooLarge) {
			return "", err
		}
	}
	return "", fmt.Errorf("reading %s: %d files of this name hold no identity; remove them", filepath.Join(dir, volumeID), most)
}

// VolumeSpace returns the size and the free space of the volume mounted at dir, without an identity.
func VolumeSpace(dir string) agent.Volume {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return agent.Volume{Problem: fmt.Sprintf("reading the size of %s: %v", dir, err)}
	}
	return agent.Volume{Size: agent.Bytes(stat.Blocks) * agent.Bytes(stat.Bsize), Free: agent.Bytes(stat.Bavail) * agent.Bytes(stat.Bsize)}
}

var validIdentity = regexp.MustCompile(`^[0-9A-Za-z-]{8,64}$`)

// identity reads the file, or creates it. It appears whole by a link, which fails
// if another node was first, on shared file systems too.
func identity(path string) (string, error) {
	read := func() (string, error) {
		content, err := claimfile.Read(path, 100)
		return strings.TrimSpace(string(content)), err
	}
	id, err := read()
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	temporary := path + "." + rand.Text()
	defer os.Remove(temporary)
	if err := os.WriteFile(temporary, []byte(rand.Text()+"\n"), 0o664); err != nil {
		return "", err
	}
	if err := os.Link(temporary, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return read()
}
