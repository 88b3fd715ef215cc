// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// faultHandler is the variable by which Python prints the stacks of all threads when a signal such as SIGSEGV or SIGABRT ends it.
const faultHandler = "PYTHONFAULTHANDLER"

// dumpUnread ends the live ranks whose stacks could not be read by SIGABRT, if they print them then, and waits until they are gone
// or ctx is done.
func (j *job) dumpUnread(ctx context.Context) {
	status, _ := j.snapshot()
	var ending []int
	for _, rank := range status.Ranks {
		if _, unread := j.unread.Load(rank.Rank); !unread || !rank.Ended.IsZero() || rank.PID == 0 {
			continue
		}
		pid, _, _ := pythonOf(rank.PID)
		if !hasHandler(pid, syscall.SIGABRT) {
			continue
		}
		// Without a core dump, which has the size of the rank. A limit of 1, unlike 0, also counts for a pipe: see core(5).
		_ = unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}, nil)
		j.aborted.Store(rank.Rank, true)
		if syscall.Kill(pid, syscall.SIGABRT) == nil {
			_ = syscall.Kill(pid, syscall.SIGCONT) // it may be stopped
			ending = append(ending, pid)
		}
	}
	for _, pid := range ending {
		for found, ok := readProcess(pid); ok && !found.dead && sleepContext(ctx, briefly); found, ok = readProcess(pid) {
		}
	}
}

// hasHandler reports whether the process has a handler for the signal. SigCgt of proc(5) is a mask in hexadecimal, whose lowest bit is
// signal 1.
func hasHandler(pid int, signal syscall.Signal) bool {
	status, _ := os.ReadFile(procPath(pid, "status"))
	_, mask, _ := strings.Cut(string(status), "\nSigCgt:")
	var caught uint64
	_, err := fmt.Sscanf(mask, "%x", &caught)
	return err == nil && caught&(1<<(signal-1)) != 0
}
