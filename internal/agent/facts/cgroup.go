// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// OwnCgroup returns the folder of this process's cgroup, where the kernel counts the processes that it has killed for want of memory. In
// a pod it is the top of what the pod sees.
func OwnCgroup() string {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err != nil {
		return top // version 1
	}
	content, _ := os.ReadFile("/proc/self/cgroup") //nolint:forbidigo // it is the kernel's
	for line := range strings.Lines(string(content)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join(top, path)
		}
	}
	return top
}

// Memory is the kernel's account of the container's memory.
type Memory struct {
	// Limit is 0 for none.
	Limit agent.Bytes
	Used  agent.Bytes
	// Cache is the part of Used with contents of files that were not read for a while.
	Cache agent.Bytes
	// Killed counts processes that the kernel killed for memory.
	Killed int
}

// ReadMemory reads the memory cgroup of the calling container, version 2 or 1,
// from sys, the tree at /sys/fs/cgroup. Unreadable values are 0.
func ReadMemory(sys fs.FS) Memory {
	if _, err := fs.Stat(sys, "cgroup.controllers"); err == nil {
		return Memory{
			Limit:  readBytes(sys, "memory.max"),
			Used:   readBytes(sys, "memory.current"),
			Cache:  agent.Bytes(readKey(sys, "memory.stat", "inactive_file")),
			Killed: readKey(sys, "memory.events", "oom_kill"),
		}
	}
	return Memory{
		Limit:  readBytes(sys, "memory/memory.limit_in_bytes"),
		Used:   readBytes(sys, "memory/memory.usage_in_bytes"),
		Cache:  agent.Bytes(readKey(sys, "memory/memory.stat", "total_inactive_file")),
		Killed: readKey(sys, "memory/memory.oom_control", "oom_kill"),
	}
}

// CPU counts the periods in which the container wanted to run under a limit, and those in which the limit stopped it.
type CPU struct{ Periods, Throttled int }

// ReadCPU reads the processor cgroup as ReadMemory reads memory's.
func ReadCPU(sys fs.FS) CPU {
	stat := "cpu/cpu.stat"
	if _, err := fs.Stat(sys, "cgroup.controllers"); err == nil {
		stat = "cpu.stat"
	}
	return CPU{Periods: readKey(sys, stat, "nr_periods"), Throttled: readKey(sys, stat, "nr_throttled")}
}

// readBytes reads a file of one number. "max" and version 1's largest number
// of pages mean no limit.
func readBytes(sys fs.FS, name string) agent.Bytes {
	content, _ := fs.ReadFile(sys, name)
	n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil || n < 0 || n >= 1<<60 {
		return 0
	}
	return agent.Bytes(n)
}

func readKey(sys fs.FS, name, key string) int {
	content, _ := fs.ReadFile(sys, name)
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			return max(0, number(strings.TrimSpace(value)))
		}
	}
	return 0
}
