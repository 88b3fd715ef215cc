// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func files(content map[string]string) fstest.MapFS {
	tree := fstest.MapFS{}
	for name, text := range content {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree
}

func TestReadMemory(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  Memory
	}{
		{"version 2", map[string]string{"cgroup.controllers": "cpu memory\n", "memory.max": "4294967296\n", "memory.current": "1048576\n",
			"memory.stat":   "anon 1000\ninactive_file 4096\n",
			"memory.events": "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n"},
			Memory{Limit: 4 << 30, Used: 1 << 20, Cache: 4096, Killed: 1}},
		{"version 2 without a limit", map[string]string{"cgroup.controllers": "", "memory.max": "max\n", "memory.current": "1048576\n"},
			Memory{Used: 1 << 20}},
		{"version 1", map[string]string{"memory/memory.limit_in_bytes": "4294967296\n", "memory/memory.usage_in_bytes": "1048576\n",
			"memory/memory.stat":        "inactive_file 1\ntotal_inactive_file 4096\n",
			"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"},
			Memory{Limit: 4 << 30, Used: 1 << 20, Cache: 4096, Killed: 3}},
		{"version 1 without a limit", map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, Memory{}},
		{"nothing", nil, Memory{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ReadMemory(files(tc.files))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadCPU(t *testing.T) {
	const stat = "nr_periods 1000\nnr_throttled 250\nthrottled_usec 77\n"
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  CPU
	}{
		{"version 2", map[string]string{"cgroup.controllers": "cpu memory\n", "cpu.stat": "usage_usec 5\n" + stat}, CPU{1000, 250}},
		{"version 1", map[string]string{"cpu/cpu.stat": stat}, CPU{1000, 250}},
		{"nothing", nil, CPU{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ReadCPU(files(tc.files))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// smi installs the shell script as nvidia-smi.
func smi(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestGPUs(t *testing.T) {
	h100 := func(change func(*agent.GPU)) []agent.GPU {
		gpu := agent.GPU{Index: 0, UUID: "GPU-a", PCI: "0000:19:00.0", Model: "NVIDIA H100 80GB HBM3", Driver: "580.95.05", Compute: "9.0",
			Memory: 81559 << 20, MemoryUsed: 4 << 20, Utilization: 97, Temperature: 61}
		change(&gpu)
		return []agent.GPU{gpu}
	}
	answer := func(active, recovery, errors string) string {
		return fmt.Sprintf("echo '0, GPU-a, NVIDIA H100 80GB HBM3, 580.95.05, 81559, 4, 97, 61, %s, %s, %s, 00000000:19:00.0, Disabled, 9.0'",
			active, recovery, errors)
	}
	for _, tc := range []struct {
		name   string
		script string
		want   []agent.GPU
		err    string // "" for none
	}{
		{"at work", answer("0x0000000000000004", "None", "0"), h100(func(*agent.GPU) {}), ""},
		{"hot and short of power", answer("0x00000000000000C4", "None", "0"), h100(func(g *agent.GPU) {
			g.Throttled = []string{"hardware thermal slowdown", "hardware power brake"}
		}), ""},
		{"broken", answer("0x0000000000000001", "Drain and Reset", "2"),
			h100(func(g *agent.GPU) {
				g.Fault = "the driver asks for recovery: Drain and Reset; 2 uncorrected memory errors"
			}), ""},
		{"memory errors that the driver has dealt with", answer("0x0000000000000001", "None", "2"), h100(func(*agent.GPU) {}), ""},
		{"what it cannot tell", answer("[N/A]", "[N/A]", "[N/A]"), h100(func(*agent.GPU) {}), ""},
		{"the same without brackets, which some fields lack", answer("N/A", "N/A", "N/A"), h100(func(*agent.GPU) {}), ""},
		{"a GPU that uses the host's memory", "echo '0, GPU-a, NVIDIA GB10, 580.126.09, [N/A], [N/A], 3, 41, 0x01, None, [N/A], " +
			"0000000F:01:00.0, [N/A], 12.1'", []agent.GPU{{UUID: "GPU-a", PCI: "000f:01:00.0", Model: "NVIDIA GB10", Driver: "580.126.09",
			Compute: "12.1", Utilization: 3, Temperature: 41}}, ""},
		{"no device", "echo 'No devices were found'; exit 6", nil, ""},
		{"the driver is gone", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", nil,
			"exit status 18: Failed to initialize NVML"},
		{"another answer", "echo '0, GPU-a'", nil, "reading nvidia-smi's answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			smi(t, tc.script)
			got, _, err := GPUs(context.Background(), nil, 1)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("no nvidia-smi", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if got, _, err := GPUs(context.Background(), nil, 1); got != nil || err != nil {
			t.Errorf("got %v, %v; want nothing", got, err)
		}
	})
}

// A driver rejects the whole query if it does not know one field. The agent then queries the other fields without that
// one.
func TestOlderDriver(t *testing.T) {
	smi(t, `case "$1" in
*gpu_recovery_action*) echo 'Field "gpu_recovery_action" is not a valid field to query.'; echo; exit 2;;
*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; echo; exit 2;;
*clocks_event_reasons.active*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; echo; exit 2;;
esac
echo '0, GPU-a, Tesla V100-SXM2-16GB, 470.82.01, 16160, 0, 0, 30, 1, 00000000:3B:00.0, [N/A]'`)
	got, _, err := GPUs(context.Background(), nil, 1)
	want := []agent.GPU{{UUID: "GPU-a", PCI: "0000:3b:00.0", Model: "Tesla V100-SXM2-16GB", Driver: "470.82.01", Memory: 16160 << 20,
		Temperature: 30}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// Any number of nodes that look at the same time see the same identity on one volume, and a different one on another
// volume.
func TestVolume(t *testing.T) {
	shared := t.TempDir()
	seen := make([]agent.Volume, 16)
	var group sync.WaitGroup
	for i := range seen {
		group.Go(func() { seen[i] = Volume(shared) })
	}
	group.Wait()
	for i, volume := range seen {
		if volume.ID == "" || volume.ID != seen[0].ID || volume.Problem != "" || volume.Size == 0 {
			t.Errorf("node %d sees %+v, node 0 %+v", i, volume, seen[0])
		}
	}
	if entries, err := os.ReadDir(shared); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v are left; want the identity alone", entries, err)
	}
	if other := Volume(t.TempDir()); other.ID == "" || other.ID == seen[0].ID {
		t.Errorf("another volume is %+v", other)
	}
	if gone := Volume(filepath.Join(shared, "not-mounted")); gone.ID != "" || !strings.Contains(gone.Problem, "not-mounted") {
		t.Errorf("no volume is %+v, want its problem", gone)
	}
}

// If an NFS server squashes root, root can read other users' files, and write nothing. In this test the file system's own
// checks refuse another user.
func TestVolumeOfAnotherUser(t *testing.T) {
	for name, prepare := range map[string]func(dir string) error{
		"the volume": func(dir string) error { return os.Chmod(dir, 0o555) },
		"the agent's folder": func(dir string) error {
			return errors.Join(os.Chmod(dir, 0o777), os.Mkdir(filepath.Join(dir, stateFolder), 0o555))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if first := Volume(dir); first.ID == "" {
				t.Fatalf("%+v", first)
			}
			// Other users must be able to traverse the folder above, too.
			if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), prepare(dir)); err != nil {
				t.Fatal(err)
			}
			// Its owner may not be root.
			t.Cleanup(func() {
				if err := os.Chmod(dir, 0o700); err != nil {
					t.Error(err)
				}
			})
			seen := asNobody(t, func() agent.Volume { return Volume(dir) })
			if seen.ID != "" || !strings.Contains(seen.Problem, "permission denied") {
				t.Errorf("got %+v, want no identity, because nothing can be written", seen)
			}
		})
	}
}

// asNobody calls f as a user who owns nothing if this process runs as root, because permissions do not stop root.
func asNobody(t *testing.T, f func() agent.Volume) agent.Volume {
	t.Helper()
	if os.Geteuid() != 0 {
		return f()
	}
	result := make(chan agent.Volume, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends when the goroutine ends
		if err := unix.Setfsuid(65534); err != nil {
			t.Error(err)
		}
		result <- f()
	}()
	return <-result
}

// A file that a node left when it lost power, or that a program put there, is no identity. The nodes agree on another
// file.
func TestVolumeIdentityIsAnotherFile(t *testing.T) {
	path := func(dir string) string { return filepath.Join(dir, volumeID) }
	for name, put := range map[string]func(dir string) error{
		"empty":  func(dir string) error { return os.WriteFile(path(dir), nil, 0o644) },
		"large":  func(dir string) error { return os.WriteFile(path(dir), make([]byte, 1<<20), 0o644) },
		"text":   func(dir string) error { return os.WriteFile(path(dir), []byte("\x1b[31mno identity"), 0o644) },
		"FIFO":   func(dir string) error { return syscall.Mkfifo(path(dir), 0o644) },
		"link":   func(dir string) error { return os.Symlink("/dev/zero", path(dir)) },
		"folder": func(dir string) error { return os.Mkdir(path(dir), 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := put(dir); err != nil {
				t.Fatal(err)
			}
			first, second := Volume(dir), Volume(dir)
			if first.ID == "" || first.Problem != "" || second.ID != first.ID {
				t.Errorf("got %+v, then %+v; want one identity", first, second)
			}
		})
	}
}

// A process that keeps the output open stands in for a driver that keeps nvidia-smi in the kernel: neither ends in time.
func TestStuckDriver(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "pid")
	smi(t, fmt.Sprintf("echo x >>'%s.started'\nsleep 600 &\necho $! >'%s'\nexec sleep 600\n", kept, kept))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for content := []byte(nil); len(content) == 0; time.Sleep(time.Millisecond) { // until the process keeps the output
			content, _ = os.ReadFile(kept)
		}
		cancel()
	}()
	for _, want := range []string{"it does not end, although it was killed", "an earlier one does not end"} {
		if _, _, err := GPUs(ctx, nil, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if started, err := os.ReadFile(kept + ".started"); err != nil || string(started) != "x\n" {
		t.Errorf("nvidia-smi was started %d times, %v; want once", len(started)/2, err)
	}
	pid, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("kill", "-KILL", strings.TrimSpace(string(pid))).Run(); err != nil {
		t.Fatal(err)
	}
	for stuck.Load() > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}
