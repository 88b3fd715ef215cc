package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/agenttest"
)

// started starts a job that lives on, and returns its rank once that has printed.
func (n *node) started(id string, spec agent.JobSpec) (rank agent.RankStatus) {
	n.t.Helper()
	n.script("live.sh", "echo up; exec sleep 1000")
	if _, err := n.Client.StartJob(n.t.Context(), id, spec); err != nil {
		n.t.Fatal(err)
	}
	for {
		status, err := n.Client.Job(n.t.Context(), id)
		if err != nil || status.State != agent.Running {
			n.t.Fatalf("%s, %v; want it running", status.State, err)
		}
		printed, _ := os.ReadFile(filepath.Join(status.Record, "rank-0.log")) // once it has started
		if len(status.Ranks) == 1 && string(printed) == "up\n" {
			return status.Ranks[0]
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestStacks(t *testing.T) {
	for _, tc := range []struct {
		name, path string
		want       string
	}{
		{"with py-spy", agenttest.PySpy(t), "all_reduce"},
		{"without", os.Getenv("PATH"), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			spec := command("live.sh")
			spec.Env = map[string]string{"PATH": tc.path}
			rank := n.started("job", spec)
			if err := syscall.Kill(rank.PID, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			all, err := n.Client.Stacks(t.Context(), "job")
			if err != nil || len(all) != 1 || all[0].State != "T" || (tc.want == "") != (all[0].Problem != "") {
				t.Fatalf("got %+v, %v; want one stopped rank", all, err)
			}
			if tc.want != "" && (len(all[0].Frames) != 4 || all[0].Frames[0].Function != tc.want || all[0].Frames[2] != agent.Frame{Function: "main", File: "gloo.py", Line: 16}) {
				t.Errorf("frames %+v, want those of py-spy", all[0].Frames)
			}
			recorded, err := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, ".mlenv", "runs", "job", "stacks-0.txt"))
			if err != nil || !strings.Contains(string(recorded), "rank 0 on node 0") || !strings.Contains(string(recorded), "sleep: T ") || !strings.Contains(string(recorded), tc.want) {
				t.Errorf("the record has %q, %v", recorded, err)
			}
			n.stop("job")
			if all, err := n.Client.Stacks(t.Context(), "job"); err != nil || len(all) != 0 {
				t.Errorf("after the end: %+v, %v; want nothing", all, err)
			}
		})
	}
}

func (n *node) stop(id string) {
	n.t.Helper()
	if err := n.Client.StopJob(n.t.Context(), id, agent.Stop{Reason: "enough", Grace: time.Millisecond}); err != nil {
		n.t.Fatal(err)
	}
	n.wait(id)
}
