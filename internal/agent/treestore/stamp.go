package treestore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// stamp is how a file can be recognised as unchanged without being read. It has
// no change time (ctime): every further hard link sets that.
type stamp struct {
	size int64
	// modified in nanoseconds since 1970; 0 is never a file's of ours and says that the file must be read.
	modified int64
	inode    uint64
	// mode has the type and permissions as the kernel writes them.
	mode uint32
}

var errNotRegular = errors.New("not a regular file")

// stampAt looks at a file, not through a link.
func stampAt(path string) (stamp, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return stamp{}, err
	}
	return stampOf(info)
}

func stampOf(info os.FileInfo) (stamp, error) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return stamp{}, &os.PathError{Op: "looking at", Path: info.Name(), Err: errNotRegular}
	}
	return stamp{size: info.Size(), modified: info.ModTime().UnixNano(), inode: stat.Ino, mode: stat.Mode}, nil
}

func (s stamp) executable() bool { return s.mode&0o100 != 0 }

// restless is how long after its last change a file may change again without
// another time stamp: clocks of file systems are coarse, and servers' clocks differ.
const restless = 2 * time.Second

// settled is the stamp to remember for a file that was read: one that matches
// nothing, if the file was changed only just now.
func (s stamp) settled(now time.Time) stamp {
	if now.Sub(time.Unix(0, s.modified)) < restless {
		s.modified = 0
	}
	return s
}

// mostMemories bounds what a Store remembers, to some 10 MB.
const mostMemories = 50_000

// memory is the contents of files that this process has read, so that a large one
// is not read again for the next question.
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
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyBuffer(sum, onlyReader{f}, newBuffer(size)); err != nil {
		return "", err
	}
	return tree.Digest(hex.EncodeToString(sum.Sum(nil))), nil
}

// onlyReader hides the WriteTo of a file, which would not use the buffer.
type onlyReader struct{ io.Reader }

// newBuffer is for copying so many bytes.
func newBuffer(size int64) []byte { return make([]byte, max(1, min(size, 256<<10))) }
