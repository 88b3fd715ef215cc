// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const check = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

func TestTrialOfLocks(t *testing.T) {
	dir := t.TempDir()
	release, first := Trial{}.Lock(dir, check)
	if !first.Locked || release == nil {
		t.Fatalf("the first lock: %+v, want it", first)
	}
	if again, second := (Trial{}).Lock(dir, check); second.Locked || second.Problem != "" || again != nil {
		t.Errorf("the second lock: %+v, want it refused without a problem", second)
	}
	release()
	release, third := Trial{}.Lock(dir, check)
	if !third.Locked {
		t.Fatalf("after the release: %+v, want it", third)
	}
	release()
	old := filepath.Join(dir, trialPrefix+"OLD")
	if err := os.Mkdir(old, 0o755); err != nil {
		t.Fatal(err)
	}
	before := time.Now().Add(-2 * trialLife)
	if err := os.Chtimes(old, before, before); err != nil {
		t.Fatal(err)
	}
	Trial{}.Clear(dir, check)
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("after the check there are %v, %v; want nothing, not even of an old check", left, err)
	}
}

// TestTrialWithoutLocks: errors as file systems without locks give them, and a lock that never returns.
func TestTrialWithoutLocks(t *testing.T) {
	for err, want := range map[error]string{unix.ENOLCK: "flock: no locks available (ENOLCK)",
		unix.ENOSYS: "flock: function not implemented (ENOSYS)", unix.EOPNOTSUPP: "(ENOTSUP)"} {
		_, got := Trial{Flock: func(int, int) error { return err }}.Lock(t.TempDir(), check)
		if got.Locked || !strings.Contains(got.Problem, want) {
			t.Errorf("%v: %+v, want problem %q", err, got, want)
		}
	}
	var interrupted bool
	retried := Trial{Flock: func(fd, how int) error {
		if !interrupted {
			interrupted = true
			return unix.EINTR
		}
		return unix.Flock(fd, how)
	}}
	if release, got := retried.Lock(t.TempDir(), check); !got.Locked {
		t.Errorf("after a signal: %+v, want the lock", got)
	} else {
		release()
	}
	hangs := make(chan struct{})
	defer close(hangs)
	const timeToLock = time.Millisecond
	slow := Trial{Time: timeToLock, Flock: func(int, int) error { <-hangs; return nil }}
	if _, got := slow.Lock(t.TempDir(), check); got.Locked || got.Problem != "flock has not returned within "+timeToLock.String() {
		t.Errorf("a lock that hangs: %+v", got)
	}
	if _, got := (Trial{}).Lock(filepath.Join(t.TempDir(), "absent"), check); got.Unwritable == "" || got.Problem != "" {
		t.Errorf("a volume that cannot be written: %+v, want no problem of its locks", got)
	}
}

func TestTrialOfRenames(t *testing.T) {
	dir := t.TempDir()
	done := make(chan string, 3)
	for node := range cap(done) {
		go func() { done <- Trial{}.Replace(dir, check, node).Problem }()
	}
	for range cap(done) {
		if problem := <-done; problem != "" {
			t.Error(problem)
		}
	}
	copied := func(from, to string) error { // as file systems over object stores do, seen in the middle
		content, err := os.ReadFile(from)
		return errors.Join(err, os.WriteFile(to, content[:len(content)/2], 0o600), os.Remove(from))
	}
	for want, rename := range map[string]func(from, to string) error{
		"(EPERM)": func(string, string) error { return unix.EPERM }, "was not whole": copied, "was missing": func(from, _ string) error {
			return os.Remove(from)
		},
	} {
		if got := (Trial{Rename: rename}).Replace(t.TempDir(), check, 0); !strings.Contains(got.Problem, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}

// lockless is set for the process of TestKernelWithoutLocks.
const lockless = "MLENV_TEST_LOCKLESS"

// TestKernelWithoutLocks runs the check in a process for which the kernel itself answers flock with ENOLCK, by a filter of system
// calls.
func TestKernelWithoutLocks(t *testing.T) {
	if dir := os.Getenv(lockless); dir != "" {
		if err := refuseLocks(); err != nil {
			fmt.Println("no filter:", err)
			return
		}
		_, got := Trial{}.Lock(dir, check)
		fmt.Println("problem:", got.Problem)
		return
	}
	process := exec.Command(os.Args[0], "-test.run=^TestKernelWithoutLocks$")
	process.Env = append(os.Environ(), lockless+"="+t.TempDir())
	out, err := process.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Contains(string(out), "no filter:") {
		t.Skipf("%s", out)
	}
	if !strings.Contains(string(out), "problem: flock: no locks available (ENOLCK)\n") {
		t.Errorf("got %s, want ENOLCK of the kernel", out)
	}
}

// refuseLocks installs the filter for all threads of this process.
func refuseLocks() error {
	const load, jumpIfEqual, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
		unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load}, // the number of the system call
		{Code: jumpIfEqual, Jf: 1, K: unix.SYS_FLOCK},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOLCK)},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if failed != 0 {
		return failed
	}
	return nil
}
