//go:build !linux

package git

import "time"

// limitProcess does nothing: only Linux can limit another process.
func limitProcess(int, uint64, time.Duration) {}
