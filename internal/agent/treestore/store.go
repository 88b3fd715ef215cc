// SPDX-License-Identifier: Apache-2.0

// Package treestore keeps the synced trees of a node: each in its own folder, with hard links between equal files and a link to the
// current tree. It lays the working directories of jobs, which are views of trees.
package treestore

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Files in the root, next to a folder HASH for each tree.
const (
	// manifestSuffix: HASH.manifest is the tree's manifest in JSON. It exists before the tree.
	manifestSuffix = ".manifest"
	// indexSuffix: HASH.index certifies that the tree is complete, and has the stamps of its files.
	indexSuffix = ".index"
	// removingSuffix: HASH.removing is the index of a tree during its removal.
	removingSuffix = ".removing"
	// metaSuffix: HASH.json has the metadata of a tree that was current once.
	metaSuffix = ".json"
	// changedInfix: HASH.changed-TIME has files that programs had changed when the tree was repaired.
	changedInfix = ".changed-"
	// stagingFolder holds incomplete trees, one folder for each Receive.
	stagingFolder = ".staging"
	// lockFile is locked during changes of the root.
	lockFile = ".lock"
	// keptFolder holds verified contents of broken transfers, named by digest.
	keptFolder = ".contents"
)

// Bounds of what is read of these files, in bytes: as much as one manifest may have.
const (
	maxIndex = 256 << 20
	maxMeta  = 64 << 10
)

// folderMode lets programs of any user of the group create files in trees.
const folderMode = 0o775 | fs.ModeSetgid

// Store holds the trees under one root. Its methods may run concurrently, also in several agents that share the root.
type Store struct {
	root, current string
	// work is the folder of working directories.
	work string
	// boot is the kernel's boot id: writes of another boot may be lost.
	boot string
	// mu guards lock.
	mu     sync.Mutex
	memory memory
	// writable is a function of that name; tests run as root, which can write to any file.
	writable func(path string) bool
}

// Open creates a missing root. The link to the current tree is at current, on the same volume.
func Open(root, current string) (*Store, error) {
	work := filepath.Join(filepath.Dir(root), workFolder)
	for _, folder := range []string{root, filepath.Join(root, stagingFolder), filepath.Join(root, keptFolder), work} {
		if err := makeFolders(folder); err != nil {
			return nil, fail.Becausef(fail.SyncFailed, "opening the trees' folder: %w", err)
		}
	}
	return &Store{root: root, current: current, work: work, boot: bootID(), writable: writable}, nil
}

// bootID changes at every start of the kernel. Without the kernel's id it is random, so that no earlier stamp is trusted.
func bootID() string {
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		return strings.TrimSpace(string(id))
	}
	return rand.Text()
}

// makeFolders creates a folder and its missing parents.
func makeFolders(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if up := filepath.Dir(path); up != path {
		if err := makeFolders(up); err != nil {
			return err
		}
	}
	if err := makeFolder(path); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// makeFolder creates a folder with folderMode, whatever the umask.
func makeFolder(path string) error {
	if err := os.Mkdir(path, 0o775); err != nil {
		return err
	}
	return os.Chmod(path, folderMode)
}

func (s *Store) treeDir(hash tree.Digest) string { return filepath.Join(s.root, string(hash)) }

func (s *Store) sibling(hash tree.Digest, suffix string) string { return s.treeDir(hash) + suffix }

// Path returns the folder of a complete tree.
func (s *Store) Path(hash tree.Digest) (string, error) {
	if !hash.Valid() {
		return "", fail.Becausef(fail.SyncFailed, "finding tree %q: no such name: want 64 lower-case hex digits", hash)
	}
	if _, err := os.Stat(s.sibling(hash, indexSuffix)); err != nil {
		return "", fail.Becausef(fail.SyncFailed, "finding tree %s: not on this node: sync it first: %w", hash, err)
	}
	return s.treeDir(hash), nil
}

// meta is the content of HASH.json.
type meta struct {
	// Venv is the virtual environment of the tree's jobs, "" for none. Venvs has one for each link that led to the tree:
	// environments that share the root have links of their own.
	Venv  string            `json:"venv,omitempty"`
	Venvs map[string]string `json:"venvs,omitempty"`
}

// Venv returns the virtual environment of the last switch to the tree, "" for none.
func (s *Store) Venv(hash tree.Digest) string {
	m := s.meta(hash)
	if own, ok := m.Venvs[s.linkName()]; ok {
		return own
	}
	return m.Venv
}

// linkName gives each environment its own link, wherever the volume is mounted.
func (s *Store) linkName() string {
	name, err := filepath.Rel(s.root, s.current)
	if err != nil {
		return s.current
	}
	return name
}

// meta returns the zero value for a tree that was never current.
func (s *Store) meta(hash tree.Digest) meta {
	var m meta
	if claimfile.ReadJSON(s.sibling(hash, metaSuffix), maxMeta, &m) != nil {
		return meta{}
	}
	return m
}

// replace replaces a file in one step.
func (s *Store) replace(path string, content []byte) error {
	return claimfile.Replace(path, filepath.Join(s.root, stagingFolder), content)
}

// replaceJSON replaces the file of a tree.
func (s *Store) replaceJSON(hash tree.Digest, suffix string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return s.replace(s.sibling(hash, suffix), content)
}

// manifest reads a saved manifest, and trusts it no more than the network.
func (s *Store) manifest(hash tree.Digest) (namedManifest, error) {
	var m tree.Manifest
	if err := claimfile.ReadJSON(s.sibling(hash, manifestSuffix), maxIndex, &m); err != nil {
		return namedManifest{}, err
	}
	if err := checkManifest(m, hash); err != nil {
		return namedManifest{}, err
	}
	return nameManifest(m)
}

func checkManifest(m tree.Manifest, hash tree.Digest) error {
	if !hash.Valid() {
		return fail.Becausef(fail.SyncFailed, "checking tree %q: no such name: want 64 lower-case hex digits", hash)
	}
	if err := m.Check(); err != nil {
		return err
	}
	if got := m.Hash(); got != hash {
		return fail.Becausef(fail.SyncFailed, "checking tree %s: its manifest has hash %s", hash, got)
	}
	return nil
}

// lock excludes other goroutines, and other agents that share the root, until the caller calls unlock. If the file system does not
// support locks, only renames protect the root: no incomplete tree gets its name, but two agents may do the same work.
func (s *Store) lock() (unlock func(), err error) {
	s.mu.Lock()
	f, err := claimfile.OpenFile(filepath.Join(s.root, lockFile), os.O_CREATE|os.O_RDWR, 0o664)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	_ = f.Chmod(0o664) // agents of other users need it; fails unless this user owns the file
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil && !errors.Is(err, unix.ENOLCK) && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOSYS) {
		s.mu.Unlock()
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return func() {
		f.Close()
		s.mu.Unlock()
	}, nil
}

// syncFailed adds the reason and what failed to an error, if there is one.
func syncFailed(err *error, format string, args ...any) {
	if *err != nil {
		*err = fail.Becausef(fail.SyncFailed, format+": %w", append(args, *err)...)
	}
}
