//go:build !linux

package git

// limitMemory does nothing where the system has no such limit.
func limitMemory(int, uint64) {}
