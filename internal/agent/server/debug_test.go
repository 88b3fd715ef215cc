// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// fakePython is an interpreter that prints its arguments. It has debugpy unless the variable NO_DEBUGPY is set.
const fakePython = `#!/bin/sh
[ "$1" = -c ] && { echo "No module named debugpy"; [ -z "$NO_DEBUGPY" ]; exit; }
echo "$*, DeepSpeed waits $DEEPSPEED_TIMEOUT"`

func TestDebugRank(t *testing.T) {
	n := newNode(t)
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(fakePython), 0o755); err != nil {
		t.Fatal(err)
	}
	n.End()
	n.Config.Environ = append(n.Config.Environ, "PATH="+bin+":"+os.Getenv("PATH"), "DEEPSPEED_TIMEOUT=7")
	n.Restart()
	n.script("train.py", "")
	n.script("train.sh", "")
	spec := agent.JobSpec{Run: "run", Launcher: agent.Torchrun, Script: "train.py", Args: []string{"--lr=1"}, Nodes: 1, RanksPerNode: 2,
		DebugRank: new(1)}
	n.run("debugged", spec)
	for name, want := range map[string]string{
		"rank-0": "-u train.py --lr=1, DeepSpeed waits 7\n",
		"rank-1": "-u -Xfrozen_modules=off -m debugpy --listen 127.0.0.1:5678 --wait-for-client train.py --lr=1, DeepSpeed waits 7\n",
	} {
		if got := n.log("debugged", name, 0); got != want {
			t.Errorf("%s ran with %q, want %q", name, got, want)
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*agent.JobSpec)
		want   string
	}{
		{"no rank", func(s *agent.JobSpec) { s.DebugRank = new(2) }, "debugRank: 2: the job has ranks 0 to 1"},
		{"a command", func(s *agent.JobSpec) { s.Launcher = agent.Command }, "launcher command starts programs and no ranks"},
		{"a shell script", func(s *agent.JobSpec) { s.Script = "train.sh" }, `script "train.sh" does not end in .py`},
		{"no debugpy", func(s *agent.JobSpec) { s.Env = map[string]string{"NO_DEBUGPY": "1"} }, "No module named debugpy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wrong := spec
			tc.change(&wrong)
			_, err := n.Client.StartJob(t.Context(), "refused", wrong)
			if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %s: %v, want InvalidInput with %q", fail.ReasonOf(err), err, tc.want)
			}
		})
	}
}
