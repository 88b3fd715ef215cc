package git

import "golang.org/x/sys/unix"

// limitMemory bounds the memory that a process and its later children can
// allocate, so that git fails with a message instead of having the container
// killed. A process that has exited already needs none.
func limitMemory(pid int, bytes uint64) {
	_ = unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: bytes, Max: bytes}, nil)
}
