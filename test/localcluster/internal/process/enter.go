// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// SystemCgroup is the cgroup of the components, next to the cgroups of the pods.
const SystemCgroup = topology.CgroupRoot + "/system"

// Enter turns this process into the component of that name. It joins the cluster's cgroup, records its process number,
// joins the component's network namespace, mounts the component's own folders where only the component sees them, and
// executes the component's program. It returns only on failure.
func Enter(name string) error {
	record, err := load(name)
	if err != nil {
		return err
	}
	spec := record.Spec
	cgroups, err := host.DetectCgroups()
	if err != nil {
		return err
	}
	if err := cgroups.Join(SystemCgroup); err != nil {
		return err
	}
	record.PID = os.Getpid()
	record.StartTime = startTime(record.PID)
	if err := record.save(); err != nil {
		return err
	}
	// The lock ends with the exec below. While a thread other than the first executes a program, the process looks
	// like a zombie, and a second up would start the component again.
	unix.CloseOnExec(enteringFD)
	program, err := exec.LookPath(spec.Argv[0])
	if err != nil {
		return err
	}
	// Namespaces belong to a thread; execve keeps the namespaces of the thread that calls it.
	runtime.LockOSThread()
	if err := joinNetns(spec.Netns); err != nil {
		return err
	}
	if len(spec.Binds) > 0 {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("creating a mount namespace: %w", err)
		}
		targets := make([]string, 0, len(spec.Binds))
		for target := range spec.Binds {
			targets = append(targets, target)
		}
		sort.Strings(targets)
		for _, target := range targets {
			if err := bindPrivately(spec.Binds[target], target); err != nil {
				return err
			}
		}
	}
	if err := limitMemlock(spec.Memlock); err != nil {
		return err
	}
	return fmt.Errorf("executing %s: %w", program, unix.Exec(program, spec.Argv, os.Environ()))
}

// limitMemlock sets the limit that every process started from here on inherits, containers included. Lowering the limit
// needs no capability.
func limitMemlock(bytes int64) error {
	if bytes == 0 {
		return nil
	}
	limit := unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("limiting locked memory to %d bytes (more than this machine allows needs CAP_SYS_RESOURCE): %w", bytes, err)
	}
	return nil
}

func joinNetns(ns topology.Netns) error {
	fd, err := unix.Open(ns.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", ns.Path(), err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("joining network namespace %s: %w", ns.Path(), err)
	}
	return nil
}

// bindPrivately mounts source at target so that the host does not see the mount. Later mounts below source also appear
// below target.
func bindPrivately(source, target string) error {
	if info, err := os.Stat(source); err != nil || info.IsDir() {
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
	}
	// The host may share the mount that contains the target. So stop the propagation from this namespace to the host's
	// there.
	above, err := host.MountAbove(target)
	if err != nil {
		return err
	}
	if err := unix.Mount("", above, "", unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detaching the mount at %s: %w", above, err)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("binding %s to %s: %w", source, target, err)
	}
	return nil
}
