// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Trial tries what caches need of a volume that several nodes mount: locks that exclude other nodes, and renames that replace a
// file in one step. NFS without locks and Lustre without its option flock lack the former; file systems over object stores lack the
// latter.
type Trial struct {
	// Flock and Rename are the system's, nil for unix.Flock and os.Rename.
	Flock  func(fd, how int) error
	Rename func(from, to string) error
	// Time bounds each part, 0 for trialTime: on a broken NFS a lock never returns.
	Time time.Duration
}

const (
	trialTime   = 10 * time.Second
	trialPrefix = ".mlenv-check-"
	// trialLife is how long the files of a check may stay that its caller has not removed.
	trialLife = time.Hour
	// renames are how often each node replaces the file.
	renames = 20
)

func trialFolder(dir, check string) string { return filepath.Join(dir, trialPrefix+check) }

// Lock takes the lock of a check without waiting for it. release is nil without the lock.
func (t Trial) Lock(dir, check string) (release func(), answer agent.VolumeAnswer) {
	type result struct {
		file   *os.File
		answer agent.VolumeAnswer
	}
	got, ok := runInTime(t, func() result {
		file, answer := t.lock(trialFolder(dir, check))
		return result{file, answer}
	}, func(late result) {
		if late.file != nil {
			late.file.Close()
		}
	})
	switch {
	case !ok:
		return nil, agent.VolumeAnswer{Problem: "flock has not returned within " + t.time().String()}
	case got.file == nil:
		return nil, got.answer
	}
	return func() {
		_, _ = runInTime(t, func() error { return got.file.Close() }, func(error) {})
	}, got.answer
}

func (t Trial) lock(folder string) (*os.File, agent.VolumeAnswer) {
	if err := makeFolder(folder); err != nil {
		return nil, failed("creating a folder", err)
	}
	file, err := claimfile.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o664)
	if err != nil {
		return nil, failed("creating a file", err)
	}
	flock := t.Flock
	if flock == nil {
		flock = unix.Flock
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	switch {
	case err == nil:
		return file, agent.VolumeAnswer{Locked: true}
	case errors.Is(err, unix.EWOULDBLOCK):
		file.Close()
		return nil, agent.VolumeAnswer{}
	}
	file.Close()
	return nil, agent.VolumeAnswer{Problem: fmt.Sprintf("flock: %v%s", err, errorName(err))}
}

// makeFolder creates a folder in which every user of the group can create files.
func makeFolder(folder string) error {
	if err := os.Mkdir(folder, 0o2775); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	_ = os.Chmod(folder, 0o775|fs.ModeSetgid) // fails if another node's user owns it, who has done this
	return nil
}

// errorName returns the name by which bug reports and manuals call an error of flock.
func errorName(err error) string {
	var number syscall.Errno
	if errors.As(err, &number) && unix.ErrnoName(number) != "" {
		return " (" + unix.ErrnoName(number) + ")"
	}
	return ""
}

// failed returns the answer for an error before anything was tried. A full or read-only volume says nothing about its locks.
func failed(doing string, err error) agent.VolumeAnswer {
	return agent.VolumeAnswer{Unwritable: fmt.Sprintf("%s: %v", doing, err)}
}

// Replace replaces a file by renames, as node, while other nodes do the same, and reads it after each: it is always there, and always
// the whole file of one of them.
func (t Trial) Replace(dir, check string, node int) agent.VolumeAnswer {
	until := time.Now().Add(t.time())
	replace := func() agent.VolumeAnswer { return t.replace(trialFolder(dir, check), node, until) }
	answer, ok := runInTime(t, replace, func(agent.VolumeAnswer) {})
	if !ok {
		return agent.VolumeAnswer{Problem: "renaming a file has not returned within " + t.time().String()}
	}
	return answer
}

func (t Trial) replace(folder string, node int, until time.Time) agent.VolumeAnswer {
	if err := makeFolder(folder); err != nil {
		return failed("creating a folder", err)
	}
	rename := t.Rename
	if rename == nil {
		rename = os.Rename
	}
	own, common := filepath.Join(folder, fmt.Sprintf("from-%d", node)), filepath.Join(folder, "renamed")
	for range renames {
		if time.Now().After(until) {
			break // a slow volume is none without renames
		}
		if err := os.WriteFile(own, wholeFile(node), 0o664); err != nil {
			return failed("writing a file", err)
		}
		if err := rename(own, common); err != nil {
			return agent.VolumeAnswer{Problem: fmt.Sprintf("replacing a file by a rename: %v%s", err, errorName(err))}
		}
		content, err := claimfile.Read(common, 2*wholeSize)
		if errors.Is(err, unix.ESTALE) { // it was replaced between opening and reading it
			content, err = claimfile.Read(common, 2*wholeSize)
		}
		switch {
		case errors.Is(err, unix.ESTALE):
		case errors.Is(err, fs.ErrNotExist):
			return agent.VolumeAnswer{Problem: "a file was missing while another node replaced it by a rename"}
		case err != nil:
			return failed("reading a file", err)
		case !isWhole(content):
			return agent.VolumeAnswer{Problem: "a file was not whole while another node replaced it by a rename"}
		}
	}
	return agent.VolumeAnswer{}
}

// wholeSize is more than a block, and more than one write of most network file systems' buffers of names.
const wholeSize = 64 << 10

func wholeFile(node int) []byte { return bytes.Repeat([]byte{byte('a' + node%26)}, wholeSize) }

func isWhole(content []byte) bool {
	return len(content) == wholeSize && bytes.Count(content, content[:1]) == wholeSize
}

// Clear removes the files of a check, and old files of checks whose callers did not remove them.
func (t Trial) Clear(dir, check string) {
	_, _ = runInTime(t, func() error {
		err := os.RemoveAll(trialFolder(dir, check))
		entries, _ := os.ReadDir(dir) // what stays is removed by a later check
		for _, entry := range entries {
			info, infoErr := entry.Info()
			if strings.HasPrefix(entry.Name(), trialPrefix) && entry.IsDir() && infoErr == nil && time.Since(info.ModTime()) > trialLife {
				err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
			}
		}
		return err
	}, func(error) {})
}

func (t Trial) time() time.Duration { return cmp.Or(t.Time, trialTime) }

// runInTime runs f and waits for it, but not longer than the trial's time. A system call that hangs cannot be ended: late gets its
// result if it ever has one.
func runInTime[T any](t Trial, f func() T, late func(T)) (result T, ok bool) {
	done := make(chan T, 1)
	go func() { done <- f() }()
	timer := time.NewTimer(t.time())
	defer timer.Stop()
	select {
	case result = <-done:
		return result, true
	case <-timer.C:
		go func() { late(<-done) }()
		return result, false
	}
}
