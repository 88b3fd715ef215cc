//go:build e2e

package e2e

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// testLifecycle does to the running cluster what happens to one.
func testLifecycle(t *testing.T) {
	t.Run("a second up changes nothing", func(t *testing.T) {
		before := components(t)
		out := localcluster(t, "up")
		if !strings.Contains(out, "the cluster is up (") || strings.Contains(out, "done ") {
			t.Errorf("a second up did something:\n%s", out)
		}
		for name, pid := range components(t) {
			if before[name] != pid {
				t.Errorf("%s was process %d and is %d", name, before[name], pid)
			}
		}
	})
	t.Run("up repairs what was killed", func(t *testing.T) {
		before := components(t)
		for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler", "registry", "git", "openshift", "storage",
			"containerd@node-1", "kubelet@node-2", "kube-proxy@control", "gpu@node-1", "csi@node-2"} {
			pid, ok := before[name]
			if !ok {
				t.Fatalf("there is no component %s; there are %v", name, before)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatalf("killing %s: %v", name, err)
			}
		}
		if out, err := run(t, nil, localclusterProgram(t), "status"); exitCode(err) != 1 || !strings.Contains(out, "dead: localcluster logs etcd") {
			t.Errorf("status of a broken cluster: %v\n%s", err, out)
		}
		localcluster(t, "up")
		localcluster(t, "status")
		if after := components(t); after["kubelet@node-1"] != before["kubelet@node-1"] {
			t.Errorf("up restarted a kubelet that was alive")
		}
	})
	t.Run("up rebuilds what cannot be repaired", func(t *testing.T) {
		// A reboot ends every process and takes the network along; this is the
		// nearest that a test can come to one.
		if err := os.WriteFile(stateDir+"/boot-id", []byte("of another boot"), 0o644); err != nil {
			t.Fatal(err)
		}
		out := localcluster(t, "up")
		if !strings.Contains(out, "rebuilding: the machine was restarted") {
			t.Errorf("up did not say that it rebuilds:\n%s", out)
		}
	})
	t.Run("a GPU fault comes and goes", func(t *testing.T) {
		allocatable := func() string {
			u := user{t, "default"}
			return u.kubectl("get", "node", "node-2", "--output=jsonpath={.status.allocatable.nvidia\\.com/gpu}")
		}
		localcluster(t, "up", "--gpu-fault=node-2:3=xid-79")
		if got := allocatable(); got != "3" {
			t.Errorf("node-2 with a faulty GPU has %s allocatable, want 3", got)
		}
		localcluster(t, "up", "--gpu-fault=none")
		if got := allocatable(); got != "4" {
			t.Errorf("node-2 has %s GPUs allocatable after the fault, want 4", got)
		}
	})
}

var componentLine = regexp.MustCompile(`(?m)^(\S+)\s+(\d+)\s+running$`)

// components are the running components' process numbers by name.
func components(t *testing.T) map[string]int {
	t.Helper()
	out, _ := run(t, nil, localclusterProgram(t), "status")
	pids := map[string]int{}
	for _, m := range componentLine.FindAllStringSubmatch(out, -1) {
		pid, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		pids[m[1]] = pid
	}
	return pids
}
