package treestore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lock keeps out every other goroutine, and every other agent that shares the
// root, until unlock is called. Where the file system cannot lock, renames alone
// must do: then nothing broken gets a name, but two agents may do work twice.
func (s *Store) lock() (unlock func(), err error) {
	s.mu.Lock()
	f, err := os.OpenFile(filepath.Join(s.root, lockFile), os.O_CREATE|os.O_RDWR, 0o664)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	_ = f.Chmod(0o664) // for agents of other users; only its owner can
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
