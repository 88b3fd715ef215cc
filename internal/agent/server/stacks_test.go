// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// started starts a job that keeps running, and returns its rank once the rank has printed.
func (n *node) started(id string, spec agent.JobSpec) (rank agent.RankStatus) {
	n.t.Helper()
	n.script("live.sh", "echo up; exec sleep 1000")
	if _, err := n.Client.StartJob(n.t.Context(), id, spec); err != nil {
		n.t.Fatal(err)
	}
	return n.printed(id)
}

// printed waits until rank 0 has printed "up", and returns it.
func (n *node) printed(id string) agent.RankStatus {
	n.t.Helper()
	for {
		status, err := n.Client.Job(n.t.Context(), id)
		if err != nil || status.State != agent.Running {
			n.t.Fatalf("%s, %v; want it running", status.State, err)
		}
		printed, _ := os.ReadFile(filepath.Join(status.Record, "rank-0.log")) // missing until the rank starts
		if len(status.Ranks) == 1 && string(printed) == "up\n" {
			return status.Ranks[0]
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestStacks(t *testing.T) {
	for _, tc := range []struct {
		name string
		has  bool
		want string
	}{
		{"with py-spy", true, "all_reduce"},
		{"without", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			if tc.has {
				n.PySpy()
			}
			rank := n.started("job", command("live.sh"))
			for name := ""; name != "sleep\n"; { // what the shell executes after it has printed
				comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", rank.PID))
				if err != nil {
					t.Fatal(err)
				}
				name = string(comm)
			}
			if err := syscall.Kill(rank.PID, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			all, err := n.Client.Stacks(t.Context(), "job")
			if err != nil || len(all) != 1 || all[0].State != "T" || (tc.want == "") != (all[0].Problem != "") {
				t.Fatalf("got %+v, %v; want one stopped rank", all, err)
			}
			if tc.want != "" && (len(all[0].Frames) != 4 || all[0].Frames[0].Function != tc.want ||
				all[0].Frames[2] != agent.Frame{Function: "main", File: "gloo.py", Line: 16}) {
				t.Errorf("frames %+v, want those of py-spy", all[0].Frames)
			}
			recorded, err := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, ".mlenv", "runs", "job", "stacks-0.txt"))
			if err != nil || !strings.Contains(string(recorded), "rank 0 on node 0") || !strings.Contains(string(recorded), "sleep: T ") ||
				!strings.Contains(string(recorded), tc.want) {
				t.Errorf("the record has %q, %v", recorded, err)
			}
			n.stop()
			if all, err := n.Client.Stacks(t.Context(), "job"); err != nil || len(all) != 0 {
				t.Errorf("after the end: %+v, %v; want nothing", all, err)
			}
		})
	}
}

// A program that computes below a rank is named.
func TestChildThatComputes(t *testing.T) {
	n := newNode(t)
	n.script("live.sh", "cp /bin/sh ./compiler; ./compiler -c 'while :; do :; done' & echo up; wait")
	if _, err := n.Client.StartJob(t.Context(), "job", command("live.sh")); err != nil {
		t.Fatal(err)
	}
	n.printed("job")
	all, err := n.Client.Stacks(t.Context(), "job")
	if err != nil || len(all) != 1 || all[0].Child != "compiler" || all[0].ChildCPU <= 0 {
		t.Errorf("got %+v, %v; want the compiler", all, err)
	}
	n.stop()
}

// If py-spy cannot read a rank's stacks, the rank prints them itself when it is stopped for a hang, even if a signal has
// stopped it.
func TestFaultHandler(t *testing.T) {
	n := newNode(t)
	n.script("live.sh", `exec python3 -uc "
import time
def wait():
    print('up'); time.sleep(1000)
wait()"`)
	if _, err := n.Client.StartJob(t.Context(), "job", command("live.sh")); err != nil {
		t.Fatal(err)
	}
	rank := n.printed("job")
	if err := syscall.Kill(rank.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if all, err := n.Client.Stacks(t.Context(), "job"); err != nil || len(all) != 1 || all[0].Problem == "" {
		t.Fatalf("got %+v, %v; want one rank, and no py-spy", all, err)
	}
	if err := n.Client.StopJob(t.Context(), "job", agent.Stop{Cause: agent.StopHang, Reason: "it hangs", Grace: time.Minute}); err != nil {
		t.Fatal(err)
	}
	status := n.wait("job")
	log, err := os.ReadFile(filepath.Join(status.Record, "rank-0.log"))
	if err != nil || !strings.Contains(string(log), `File "<string>", line 4 in wait`) {
		t.Errorf("the log has %q, %v; want the stack", log, err)
	}
	if got := status.Ranks[0]; !got.Stopped || !slices.Contains(got.Tail, "Fatal Python error: Aborted in wait (<string>:4)") {
		t.Errorf("got %+v, want it stopped, and the place in its tail", got)
	}
}

func (n *node) stop() {
	n.t.Helper()
	const id = "job"
	if err := n.Client.StopJob(n.t.Context(), id, agent.Stop{Reason: "enough", Grace: time.Millisecond}); err != nil {
		n.t.Fatal(err)
	}
	n.wait(id)
}
