// Package treestore keeps the trees that were synced to a node: each in a folder
// of its own, sharing the files that are alike, with a link to the current one.
package treestore

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// What lies in the root, beside a folder HASH for each tree.
const (
	// manifestSuffix: HASH.manifest is the tree's manifest in JSON. It is there before the tree is.
	manifestSuffix = ".manifest"
	// indexSuffix: HASH.index says that the tree is whole, and how its files can be recognised.
	indexSuffix = ".index"
	// removingSuffix: HASH.removing is the index of a tree that is being removed.
	removingSuffix = ".removing"
	// metaSuffix: HASH.json is what else is known of a tree that was current once.
	metaSuffix = ".json"
	// changedInfix: HASH.changed-TIME has what programs had made of a tree's files when the tree was mended.
	changedInfix = ".changed-"
	// stagingFolder holds trees being built, one folder for each Receive.
	stagingFolder = ".staging"
	// lockFile is locked while what lies in the root changes its meaning.
	lockFile = ".lock"
	// keptFolder holds verified contents of transfers that broke, named by digest.
	keptFolder = ".contents"
)

// folderMode lets programs of any user with the group make files beside ours.
const folderMode = 0o775 | fs.ModeSetgid

// Store is the trees under one root. Its methods may be called at once, also by
// several agents that share the root.
type Store struct {
	root, current string
	// boot is the kernel's boot id: what was written in another boot may be lost.
	boot string
	// mu is lock's.
	mu     sync.Mutex
	memory memory
}

// Open makes root where it is not. The link to the current tree is at current,
// on the same volume.
func Open(root, current string) (*Store, error) {
	for _, folder := range []string{root, filepath.Join(root, stagingFolder), filepath.Join(root, keptFolder)} {
		if err := makeFolders(folder); err != nil {
			return nil, fail.Becausef(fail.SyncFailed, "opening the trees' folder: %w", err)
		}
	}
	return &Store{root: root, current: current, boot: bootID()}, nil
}

// bootID is another one after every start of the kernel, and one of its own where
// the kernel does not say: then nothing of before is trusted.
func bootID() string {
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		return strings.TrimSpace(string(id))
	}
	return rand.Text()
}

// makeFolders makes a folder and those above it that are missing.
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

// makeFolder makes one folder with the mode that all have, whatever the umask is.
func makeFolder(path string) error {
	if err := os.Mkdir(path, 0o775); err != nil {
		return err
	}
	return os.Chmod(path, folderMode)
}

func (s *Store) treeDir(hash tree.Digest) string { return filepath.Join(s.root, string(hash)) }

func (s *Store) sibling(hash tree.Digest, suffix string) string { return s.treeDir(hash) + suffix }

// Path is the folder of a whole tree.
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
	// Venv is the virtual environment of the tree's jobs, "" for none.
	Venv string `json:"venv,omitempty"`
	// Switched is when the tree became current.
	Switched time.Time `json:"switched"`
}

// Venv is the virtual environment that the tree was switched to with, "" for none.
func (s *Store) Venv(hash tree.Digest) string {
	var m meta
	if content, err := os.ReadFile(s.sibling(hash, metaSuffix)); err != nil || json.Unmarshal(content, &m) != nil {
		return ""
	}
	return m.Venv
}

// replace writes a file under another name first, so that no reader sees half of it.
func (s *Store) replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Join(s.root, stagingFolder), "file-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o664), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// saveManifest is done before anything of the tree arrives.
func (s *Store) saveManifest(hash tree.Digest, m tree.Manifest) error {
	content, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.replace(s.sibling(hash, manifestSuffix), content)
}

// manifest reads what saveManifest wrote, and trusts it no more than the network.
func (s *Store) manifest(hash tree.Digest) (m tree.Manifest, err error) {
	content, err := os.ReadFile(s.sibling(hash, manifestSuffix))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(content, &m); err != nil {
		return m, err
	}
	return m, checkManifest(m, hash)
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
