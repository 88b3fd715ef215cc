package git

import (
	"time"

	"golang.org/x/sys/unix"
)

// limitProcess bounds the memory and the processor time of a process and of those that it will start, so that git
// fails with a message instead of having the container killed. A process that has exited already needs no limit.
func limitProcess(pid int, memory uint64, cpu time.Duration) {
	seconds := uint64(cpu.Seconds())
	_ = unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: memory, Max: memory}, nil)
	_ = unix.Prlimit(pid, unix.RLIMIT_CPU, &unix.Rlimit{Cur: seconds, Max: seconds + 1}, nil)
}
