package rank

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// bind lets this thread, and what it starts, run only on those of the listed processors that the container has. The kernel then gives
// memory of the same NUMA node while that has any. If the container has none of them, or the list is empty, nothing changes.
func bind(list string) error {
	if list == "" {
		return nil
	}
	near, err := parseCPUs(list)
	if err != nil {
		return err
	}
	var own, both unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return fmt.Errorf("reading the processors of the container: %w", err)
	}
	for _, cpu := range near {
		if own.IsSet(cpu) {
			both.Set(cpu)
		}
	}
	if n := both.Count(); n == 0 || n == own.Count() {
		return nil
	}
	if err := unix.SchedSetaffinity(0, &both); err != nil {
		return fmt.Errorf("binding to processors %s: %w", list, err)
	}
	return nil
}

// parseCPUs reads the kernel's list of processors, as 0-31,64-95 (linux:lib/bitmap-str.c).
func parseCPUs(list string) (cpus []int, err error) {
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if isRange {
			var problem error
			to, problem = strconv.Atoi(last)
			err = errors.Join(err, problem)
		}
		const most = 1 << 16
		if err != nil || from < 0 || to < from || to >= most {
			return nil, fmt.Errorf("reading the list of processors %q: want ranges such as 0-31,64-95", list)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
