// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// cgroup2Mount returns a real mounted cgroup2 hierarchy, which hosts with version 1 often have too, or skips the test.
func cgroup2Mount(t *testing.T) string {
	t.Helper()
	c, err := DetectCgroups()
	if err != nil {
		t.Fatal(err)
	}
	mounts := c.Beside
	if c.Unified {
		mounts = c.Roots
	}
	if len(mounts) == 0 || os.Geteuid() != 0 {
		t.SkipNow()
	}
	return mounts[0]
}

func TestKillAllAndRemoveOnARealCgroup2(t *testing.T) {
	root := cgroup2Mount(t)
	c := Cgroups{Unified: true, Roots: []string{root}}
	const name = "ml-dev-env-unit-test"
	inner := filepath.Join(root, name, "inner")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Remove(name); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sh", "-c", "echo 0 > "+inner+"/cgroup.procs && echo joined && exec sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 16)
	if n, err := out.Read(buffer); err != nil || string(buffer[:n]) != "joined\n" {
		t.Fatalf("the process did not join: %q, %v", buffer[:n], err)
	}
	if pids, err := c.processes(name); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("processes = %v, %v; want %d", pids, err, cmd.Process.Pid)
	}
	if err := c.KillAll(name); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process ended with %v, want killed", err)
	}
	if err := c.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, name)); !os.IsNotExist(err) {
		t.Errorf("the cgroup still exists: %v", err)
	}
}

func TestCreateSaysWhichControllerIsMissing(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpu cpuset io\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := Cgroups{Unified: true, Roots: []string{root}}.Create("a/b")
	if err == nil || !strings.Contains(err.Error(), "controller memory is not available in "+root) {
		t.Errorf("Create = %v", err)
	}
}

func TestCreateCopiesTheCpuset(t *testing.T) {
	root := filepath.Join(t.TempDir(), "cpuset")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, value := range map[string]string{"cpuset.cpus": "0-1", "cpuset.mems": "0"} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := (Cgroups{Roots: []string{root}}).Create("a/b"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "a", "b", "cpuset.cpus"))
	if err != nil || string(got) != "0-1" {
		t.Errorf("cpuset.cpus of the inner cgroup is %q, %v", got, err)
	}
}

// The kubelet wants every controller of the root that it knows below its own cgroup.
func TestCreateEnablesHugetlbWhereTheKernelHasIt(t *testing.T) {
	for controllers, want := range map[string]string{
		"cpuset cpu io memory pids rdma misc":         "+io",
		"cpuset cpu io memory hugetlb pids rdma misc": "+hugetlb",
	} {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte(controllers), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := (Cgroups{Unified: true, Roots: []string{root}}).Create("a"); err != nil {
			t.Fatal(err)
		}
		if last, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); err != nil || string(last) != want {
			t.Errorf("%s: the last one enabled is %s, %v; want %s", controllers, last, err, want)
		}
	}
}
