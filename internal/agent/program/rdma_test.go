// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

func TestRDMA(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, errors bytes.Buffer
		code = Main(append([]string{"mlenv-agent", "rdma"}, args...), nil, &out, &errors)
		return code, out.String(), errors.String()
	}
	const none = "broken: NoDevice: looking for RDMA devices: there are none in /sys/class/infiniband"
	const finding = "NoDevice (broken)\n  seen: looking for RDMA devices: there are none in /sys/class/infiniband"
	if code, out, _ := run("--sys-root=" + root); code != 0 || !strings.Contains(out, finding) ||
		!strings.Contains(out, "sysfs is read from "+root) {
		t.Errorf("a tree without devices: exit code %d, %q; want 0 and %q", code, out, finding)
	}
	if code, out, _ := run("--check", "--sys-root="+root); code != 1 || !strings.HasPrefix(out, none) || strings.Count(out, "\n") != 1 {
		t.Errorf("--check: exit code %d, %q; want 1 and one line", code, out)
	}
	var facts rdma.Facts
	if code, out, _ := run("--json", "--sys-root="+root); code != 0 || json.Unmarshal([]byte(out), &facts) != nil || !facts.Broken() {
		t.Errorf("--json: exit code %d, %q; want 0 and the facts", code, out)
	}
	for _, wrong := range [][]string{{"--check", "--json"}, {"--no-such-flag"}, {"node"}} {
		if code, out, errors := run(wrong...); code != 2 || out != "" || errors == "" {
			t.Errorf("%q: exit code %d, %q, %q; want 2 and a message", wrong, code, out, errors)
		}
	}
}

func TestExecuteOverRDMA(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	command := []string{"mlenv-agent", "rdma", "exec", "--sys-root=" + root, "--", "touch", filepath.Join(root, "ran")}
	if code := Main(command, os.Environ(), &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "NoDevice (broken)") {
		t.Errorf("without devices: exit code %d, %q; want 1 and the finding", code, stderr.String())
	}
	if _, err := os.Stat(filepath.Join(root, "ran")); err == nil {
		t.Error("the command ran without RDMA devices")
	}
	stderr.Reset()
	if code := Main([]string{"mlenv-agent", "rdma", "exec"}, nil, &stdout, &stderr); code != 2 ||
		!strings.Contains(stderr.String(), "want a command") {
		t.Errorf("without a command: exit code %d, %q; want 2 and what is missing", code, stderr.String())
	}
}

func TestApplyPlan(t *testing.T) {
	plan := rdma.Plan{Variables: []rdma.Variable{
		{Name: "NCCL_IB_HCA", Value: "=mlx5_6:1", Reason: "by exact name"},
		{Name: "NCCL_IB_GID_INDEX", Value: "3", Reason: "that of all rails"},
		{Name: "NCCL_CROSS_NIC", Reason: "NCCL's default does"},
	}}
	environ := []string{"PATH=/bin", "NCCL_IB_HCA=mlx5_0", "NCCL_IB_GID_INDEX=3", "NCCL_CROSS_NIC=1", "NCCL_IB_HCA_OTHER=kept"}
	var out bytes.Buffer
	got := apply(plan, environ, &out)
	if want := []string{"PATH=/bin", "NCCL_IB_HCA_OTHER=kept", "NCCL_IB_HCA==mlx5_6:1", "NCCL_IB_GID_INDEX=3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	const says = "Auto-detected NCCL_IB_HCA==mlx5_6:1: by exact name\nThe container's own NCCL_IB_HCA=mlx5_0 is not used.\n" +
		"Auto-detected NCCL_IB_GID_INDEX=3: that of all rails\nThe container's own NCCL_CROSS_NIC=1 is not used.\n"
	if out.String() != says {
		t.Errorf("printed %q, want %q", out.String(), says)
	}
}
