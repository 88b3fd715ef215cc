// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Bytes is an amount of memory, -1 for one without limit.
type Bytes int64

// Unlimited is no limit.
const Unlimited Bytes = -1

// String returns the size in binary units, as limits of memory are set: "8 MiB".
func (b Bytes) String() string {
	switch {
	case b < 0:
		return "unlimited"
	case b >= 1<<30:
		return fmt.Sprintf("%.4g GiB", float64(b)/(1<<30))
	case b >= 1<<20:
		return fmt.Sprintf("%.4g MiB", float64(b)/(1<<20))
	}
	return fmt.Sprintf("%.4g KiB", float64(b)/(1<<10))
}

// Memlock decides whether memory can be registered with an RDMA device. Registering fails with ENOMEM if more than
// RLIMIT_MEMLOCK would be pinned and the process lacks CAP_IPC_LOCK (linux:drivers/infiniband/core/umem.c). The
// capability must be effective, so the container must run as root, whatever its specification adds; and it must be held
// in the first user namespace, which capable() checks.
type Memlock struct {
	// Soft and Hard are RLIMIT_MEMLOCK.
	Soft Bytes `json:"soft"`
	Hard Bytes `json:"hard"`
	// CapEff are the effective capabilities, as /proc/self/status has them.
	CapEff string `json:"capEff"`
	// UserNamespace is true in one of its own: there capabilities do not count.
	UserNamespace bool `json:"userNamespace,omitempty"`
}

// The bits of CapEff (linux:include/uapi/linux/capability.h). With IPC_LOCK no limit applies.
const (
	capIPCLock     = 14
	capSysResource = 24
)

func (m Memlock) has(bit int) bool {
	set, err := strconv.ParseUint(m.CapEff, 16, 64)
	return err == nil && set>>bit&1 == 1 && !m.UserNamespace
}

// MaxLockable returns how much can be locked after the soft limit is raised: to the
// hard one, or without limit with CAP_SYS_RESOURCE.
func (m Memlock) MaxLockable() Bytes {
	if m.has(capIPCLock) || m.has(capSysResource) || m.Hard == Unlimited {
		return Unlimited
	}
	return m.Hard
}

// leastLocked is the least that NCCL's buffers in host memory take on a node with several GPUs: a few MiB for each end of a channel.
const leastLocked Bytes = 1 << 30

// Enough reports whether NCCL can register its buffers, once the limit is raised.
func (m Memlock) Enough() bool { return m.MaxLockable() == Unlimited || m.MaxLockable() >= leastLocked }

// String returns the amount that can be locked, and why.
func (m Memlock) String() string {
	limits := fmt.Sprintf("limit %s, hard %s; CapEff %s", m.Soft, m.Hard, m.CapEff)
	switch {
	case m.has(capIPCLock):
		return "without limit: IPC_LOCK is effective (" + limits + ")"
	case m.UserNamespace:
		return m.MaxLockable().String() + ": capabilities do not count in a user namespace (" + limits + ")"
	}
	return m.MaxLockable().String() + ": IPC_LOCK is not effective (" + limits + ")"
}

// ReadMemlock reads the limits of the process whose /proc is in the tree.
func ReadMemlock(root fs.FS) Memlock {
	d := detector{tree: tree{root}}
	return d.memlock()
}

// memlock reads the limits and capabilities of the process. An unreadable one allows nothing.
func (d *detector) memlock() Memlock {
	var m Memlock
	for line := range strings.Lines(d.readText("proc/self/limits")) {
		if rest, ok := strings.CutPrefix(line, "Max locked memory"); ok {
			if fields := strings.Fields(rest); len(fields) >= 2 {
				m.Soft, m.Hard = parseLimit(fields[0]), parseLimit(fields[1])
			}
		}
	}
	for line := range strings.Lines(d.readText("proc/self/status")) {
		if set, ok := strings.CutPrefix(line, "CapEff:"); ok {
			m.CapEff = strings.TrimSpace(set)
		}
	}
	identity := strings.Join(strings.Fields(d.readText("proc/self/uid_map")), " ")
	m.UserNamespace = identity != "" && identity != "0 0 4294967295"
	return m
}

func parseLimit(text string) Bytes {
	if text == "unlimited" {
		return Unlimited
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return Bytes(n)
}
