// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroups is the host's cgroup file system: version 1 (one hierarchy per controller) or 2 (one for all controllers).
type Cgroups struct {
	// Unified is true on version 2.
	Unified bool
	// Roots are the mounted hierarchies: one on version 2.
	Roots []string
	// Beside is the version 2 hierarchy that some hosts with version 1 mount too. It limits nothing, but runc creates
	// its cgroups there as well.
	Beside []string
}

const cgroupMount = "/sys/fs/cgroup"

// DetectCgroups detects the version that the host has mounted.
func DetectCgroups() (Cgroups, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(cgroupMount, &stat); err != nil {
		return Cgroups{}, fmt.Errorf("reading %s: %w; mount the cgroup file system there", cgroupMount, err)
	}
	if stat.Type == unix.CGROUP2_SUPER_MAGIC {
		return Cgroups{Unified: true, Roots: []string{cgroupMount}}, nil
	}
	mounts, err := mountsBelow(cgroupMount)
	if err != nil {
		return Cgroups{}, err
	}
	var c Cgroups
	found := map[string]bool{}
	for _, m := range mounts {
		if m.fsType == "cgroup2" {
			c.Beside = append(c.Beside, m.target)
		}
		if m.fsType != "cgroup" {
			continue
		}
		c.Roots = append(c.Roots, m.target)
		for _, controller := range strings.Split(filepath.Base(m.target), ",") {
			found[controller] = true
		}
	}
	for _, want := range []string{"cpu", "cpuset", "memory", "pids", "devices", "freezer"} {
		if !found[want] {
			return Cgroups{}, fmt.Errorf("cgroup v1 controller %s is not mounted below %s; mount it, or boot with cgroup v2", want, cgroupMount)
		}
	}
	return c, nil
}

func (c Cgroups) everywhere() []string {
	return append(slices.Clone(c.Roots), c.Beside...)
}

// Version returns "v1" or "v2".
func (c Cgroups) Version() string {
	if c.Unified {
		return "v2"
	}
	return "v1"
}

// v2Controllers are the controllers that the kubelet and runc need below its root.
var v2Controllers = []string{"cpu", "cpuset", "memory", "pids", "io"}

// hugetlb is a controller that the kubelet needs too if the kernel has it.
const hugetlb = "hugetlb"

// Create creates a cgroup for pods, at a path relative to the root. On version 1 it copies the cpuset from the parent,
// because the kernel leaves it empty. On version 2 it enables the controllers in the parent.
func (c Cgroups) Create(path string) error {
	for _, root := range c.Roots {
		dir := root
		for _, part := range strings.Split(path, "/") {
			if c.Unified {
				if err := c.delegate(dir); err != nil {
					return err
				}
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("creating cgroup: %w", err)
			}
			if filepath.Base(root) == "cpuset" || strings.Contains(filepath.Base(root), "cpuset,") {
				for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
					value, err := os.ReadFile(filepath.Join(parent, file))
					if err != nil {
						return fmt.Errorf("reading cpuset of %s: %w", parent, err)
					}
					if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
						return fmt.Errorf("copying cpuset to %s: %w", dir, err)
					}
				}
			}
		}
	}
	return nil
}

func (c Cgroups) delegate(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading controllers of %s: %w", dir, err)
	}
	have := strings.Fields(string(available))
	controllers := v2Controllers
	if slices.Contains(have, hugetlb) {
		controllers = append(slices.Clone(controllers), hugetlb)
	}
	for _, want := range controllers {
		if !slices.Contains(have, want) {
			return fmt.Errorf("cgroup v2 controller %s is not available in %s (it has %q); delegate it to this cgroup",
				want, dir, strings.TrimSpace(string(available)))
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+want), 0o644)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("enabling controller %s in %s: the cgroup holds processes itself; run from a login session or systemd scope, not "+
				"from a container's root cgroup", want, dir)
		}
		if err != nil {
			return fmt.Errorf("enabling controller %s in %s: %w", want, dir, err)
		}
	}
	return nil
}

// Join moves the calling process into the cgroup.
func (c Cgroups) Join(path string) error {
	for _, root := range c.Roots {
		file := filepath.Join(root, path, "cgroup.procs")
		if err := os.WriteFile(file, []byte("0"), 0o644); err != nil {
			return fmt.Errorf("joining cgroup: %w", err)
		}
	}
	return nil
}

// Exists reports whether the cgroup exists in every hierarchy.
func (c Cgroups) Exists(path string) bool {
	for _, root := range c.Roots {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			return false
		}
	}
	return true
}

// KillAll kills every process in the cgroup and below it and returns when none is left.
func (c Cgroups) KillAll(path string) error {
	return killAll("cgroup "+path, func() ([]int, error) { return c.processes(path) })
}

// killAll kills the processes that list finds until it finds none.
func killAll(of string, list func() ([]int, error)) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		pids, err := list()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("killing the processes of %s: %v still exist after 20s", of, pids)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("killing process %d: %w", pid, err)
			}
		}
		// The kernel lists a killed process until it has cleaned up the process. The list is the only thing to wait
		// for.
		time.Sleep(20 * time.Millisecond)
	}
}

func (c Cgroups) processes(path string) ([]int, error) {
	seen := map[int]bool{}
	var pids []int
	for _, root := range c.everywhere() {
		err := filepath.WalkDir(filepath.Join(root, path), func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil
			}
			if err != nil {
				return err
			}
			if d.IsDir() || d.Name() != "cgroup.procs" {
				return nil
			}
			content, err := os.ReadFile(p)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, field := range strings.Fields(string(content)) {
				pid, err := strconv.Atoi(field)
				if err == nil && pid > 0 && !seen[pid] && !isZombie(pid) {
					seen[pid] = true
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("listing processes of cgroup %s: %w", path, err)
		}
	}
	return pids, nil
}

// isZombie reports whether a process is dead but not yet reaped. Signals have no effect on it.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(rest, "Z")
}

// Remove deletes the cgroup and everything below it. It must contain no process.
func (c Cgroups) Remove(path string) error {
	for _, root := range c.everywhere() {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(root, path), func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("listing cgroup %s: %w", path, err)
		}
		for i := len(dirs) - 1; i >= 0; i-- {
			if err := removeCgroupDir(dirs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func removeCgroupDir(dir string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		// A cgroup stays busy for a moment after its last process has ended.
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
