// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// testLifecycle tests a running cluster: a second up, killed components.
func testLifecycle(t *testing.T) {
	t.Run("a second up changes nothing", func(t *testing.T) {
		before := components(t)
		out := localcluster(t, "up")
		if !strings.Contains(out, "the cluster is up (") || strings.Contains(out, "done ") {
			t.Errorf("a second up changed the cluster:\n%s", out)
		}
		for name, pid := range components(t) {
			if before[name] != pid {
				t.Errorf("%s was process %d and is now process %d", name, before[name], pid)
			}
		}
	})
	t.Run("up repairs what was killed", func(t *testing.T) {
		before := components(t)
		for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler", "registry", "git", "openshift", "storage",
			"containerd@node-1", "kubelet@node-2", "kube-proxy@control", "gpu@node-1", "csi@node-2"} {
			pid, ok := before[name]
			if !ok {
				t.Fatalf("component %s not found; components: %v", name, before)
			}
			if err := kill(pid); err != nil {
				t.Fatalf("killing %s: %v", name, err)
			}
		}
		if out, err := run(t, nil, localclusterProgram(t), "status"); exitCode(err) != 1 ||
			!strings.Contains(out, "dead: localcluster logs etcd") {
			t.Errorf("status of a broken cluster: %v\n%s", err, out)
		}
		localcluster(t, "up")
		localcluster(t, "status")
		if after := components(t); after["kubelet@node-1"] != before["kubelet@node-1"] {
			t.Errorf("up restarted a kubelet that was alive")
		}
	})
	if os.Getenv(setVariable) == firstNightly {
		t.Run("GPU faults come and go", gpuFaults)
	}
}

// interruptedUp interrupts an up, makes the machine look as after a reboot, and interrupts the up that rebuilds the
// cluster.
func interruptedUp(t *testing.T) {
	interruptUp(t, "etcd and API server")
	// A reboot ends every process and removes the network; this is the closest that a test can get to one.
	if err := os.WriteFile(stateDir+"/boot-id", []byte("of another boot"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := interruptUp(t, "etcd and API server"); !strings.Contains(out, "rebuilding: the machine was restarted") {
		t.Errorf("up did not report that it rebuilds the cluster:\n%s", out)
	}
}

// kill kills a process and returns when it is gone.
func kill(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
	}
	return err
}

// interruptUp runs up, interrupts it after the stage, and returns its output.
func interruptUp(t *testing.T, stage string) string {
	t.Helper()
	cmd := exec.Command(localclusterProgram(t), append([]string{"up"}, bare...)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		fmt.Fprintln(&out, lines.Text())
		if strings.Contains(lines.Text(), "done") && strings.Contains(lines.Text(), stage) {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); exitCode(err) != 1 || !strings.Contains(stderr.String(), "interrupted; run localcluster up again") {
		t.Errorf("an interrupted up ended with %v and printed %q", err, stderr.String())
	}
	return out.String()
}

func gpuFaults(t *testing.T) {
	u := newUser(t)
	u.awaitPullSecret()
	wantAllocatable := func(node, want string) {
		t.Helper()
		if got := u.kubectl("get", "node", node, "--output=jsonpath={.status.allocatable.nvidia\\.com/gpu}"); got != want {
			t.Errorf("%s has %s GPUs allocatable, want %s", node, got, want)
		}
	}
	localcluster(t, "up", "--gpu-fault=node-2:3=xid-79", "--gpu-fault=node-1:0=missing", "--gpu-fault=node-1:1=throttled")
	wantAllocatable("node-1", "4")
	wantAllocatable("node-2", "3")
	u.apply("gpu-faults.yaml", map[string]string{"REGISTRY": registryHost})
	u.waitFor("jsonpath={.status.phase}=Succeeded", "pod/all-four")
	out := u.kubectl("logs", "all-four")
	u.mustContain(out, "Active", "3 devices")
	if got := strings.Count(out, "GPU-00000001-"); got != 3 {
		t.Errorf("nvidia-smi shows %d GPUs, although one of 4 is missing:\n%s", got, out)
	}
	localcluster(t, "up", "--gpu-fault=none")
	wantAllocatable("node-2", "4")
}

var componentLine = regexp.MustCompile(`(?m)^(\S+)\s+(\d+)\s+running$`)

// components returns the process numbers of the running components by name.
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
