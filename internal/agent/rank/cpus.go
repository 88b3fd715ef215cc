// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// bindCPUs lets this thread, and what it starts, run only on the listed processors, as far as the container has them. The kernel then
// gives memory of the same NUMA node while that has any. With an empty list nothing changes.
func bindCPUs(list string) error {
	if list == "" {
		return nil
	}
	cpus, err := ParseCPUs(list)
	if err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(0, &cpus); err != nil {
		return fmt.Errorf("binding to processors %s: %w", list, err)
	}
	return nil
}

// ParseCPUs reads the kernel's list of processors, as 0-31,64-95 (linux:lib/bitmap-str.c). It leaves out those from 1024 on.
func ParseCPUs(list string) (cpus unix.CPUSet, err error) {
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, fromErr := strconv.Atoi(first)
		to, toErr := strconv.Atoi(last)
		const most = 1 << 16
		if fromErr != nil || toErr != nil || from < 0 || to < from || to >= most {
			return cpus, fmt.Errorf("reading the list of processors %q: want ranges such as 0-31,64-95", list)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus.Set(cpu)
		}
	}
	return cpus, nil
}
