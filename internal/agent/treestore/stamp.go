// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"crypto/sha256"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// stamp identifies an unchanged file without reading it. It has no ctime, which every new hard link changes.
type stamp struct {
	size int64
	// modified in nanoseconds since 1970; 0 means that the file must be read.
	modified int64
	inode    uint64
	// mode has the type and permissions as the kernel writes them.
	mode uint32
}

// stampAt returns the stamp of a file, and follows no link.
func stampAt(path string) (stamp, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return stamp{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return stamp{}, &os.PathError{Op: "looking at", Path: info.Name(), Err: claimfile.ErrNotRegular}
	}
	return stamp{size: info.Size(), modified: info.ModTime().UnixNano(), inode: stat.Ino, mode: stat.Mode}, nil
}

func (s stamp) executable() bool { return s.mode&0o100 != 0 }

// restless is the time after a change in which another change may have the same time stamp: clocks of file systems are coarse, and
// servers' clocks differ.
const restless = 2 * time.Second

// settled returns the stamp to record for a file that was read. After a very recent change it matches no file.
func (s stamp) settled(now time.Time) stamp {
	if now.Sub(time.Unix(0, s.modified)) < restless {
		s.modified = 0
	}
	return s
}

// mostMemories bounds the memory of a Store to about 10 MB.
const mostMemories = 50_000

// memory caches the digests of files, so that a large one is not read again.
type memory struct {
	mu    sync.Mutex
	known map[stamp]tree.Digest
}

// content hashes the file at path, whose stamp now is settled.
func (m *memory) content(path string, now stamp) (tree.Digest, error) {
	m.mu.Lock()
	content, ok := m.known[now] // nothing is known of what has no time
	m.mu.Unlock()
	if ok {
		return content, nil
	}
	content, err := hashFile(path, now.size)
	if err != nil {
		return "", err
	}
	if now.modified != 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.known == nil || len(m.known) >= mostMemories {
			m.known = make(map[stamp]tree.Digest)
		}
		m.known[now] = content
	}
	return content, nil
}

func hashFile(path string, size int64) (tree.Digest, error) {
	f, err := claimfile.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	// Without the wrapper, the file's WriteTo would not use the buffer.
	_, err = io.CopyBuffer(sum, struct{ io.Reader }{f}, make([]byte, max(1, min(size, 256<<10))))
	return tree.DigestOf(sum), err
}
