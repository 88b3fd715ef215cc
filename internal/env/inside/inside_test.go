// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// kept starts two nodes with a shared workspace, in which script is train.sh.
func kept(t *testing.T, nodesTrain bool, script string) (all []*agenttest.Node, folder string) {
	t.Helper()
	all = agenttest.StartWith(t, 2, agenttest.Options{Shared: true, NodesTrain: nodesTrain})
	folder = all[0].Config.Paths.Workspace
	if err := os.WriteFile(filepath.Join(folder, "train.sh"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return all, folder
}

func spec() agent.JobSpec {
	return agent.JobSpec{Launcher: agent.Command, Script: "train.sh", Args: []string{"--lr=3"}, Env: map[string]string{"COLOUR": "red"}}
}

func TestTrain(t *testing.T) {
	all, folder := kept(t, true, `echo "node $NODE_RANK of $NUM_NODES is $COLOUR, $1"`)
	var out, said bytes.Buffer
	if err := Train(t.Context(), all[0].Config, folder, spec(), &out, &said); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	for _, want := range []string{"[0 -] node 0 of 2 is red, --lr=3\n", "[1 -] node 1 of 2 is red, --lr=3\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output %q, want %q in it", out.String(), want)
		}
	}
	if !strings.Contains(said.String(), "Training done: 2 ranks exited with 0.") {
		t.Errorf("said %q", said.String())
	}
}

// The node that waits is stopped as soon as the other one has failed.
func TestRankFails(t *testing.T) {
	all, folder := kept(t, true, "[ $NODE_RANK = 0 ] && exec sleep 1000\necho 'ValueError: wrong'\nexit 3")
	err := Train(t.Context(), all[0].Config, folder, spec(), io.Discard, io.Discard)
	if fail.ReasonOf(err) != fail.RankFailed || !strings.Contains(err.Error(), "rank 1 on node 1 exited with 3") {
		t.Errorf("got %s: %v", fail.ReasonOf(err), err)
	}
	idle(t, all)
}

func TestInterrupted(t *testing.T) {
	all, folder := kept(t, true, "echo started; exec sleep 1000")
	ctx, interrupt := context.WithCancel(t.Context())
	var once sync.Once
	var said bytes.Buffer
	out := writer(func(p []byte) {
		if strings.Contains(string(p), "started") {
			once.Do(interrupt)
		}
	})
	err := Train(ctx, all[0].Config, folder, spec(), out, &said)
	if fail.ReasonOf(err) != fail.Cancelled || !strings.Contains(said.String(), "Stopping the training") {
		t.Errorf("got %v, said %q", err, said.String())
	}
	idle(t, all)
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// idle checks that no job runs on the nodes.
func idle(t *testing.T, all []*agenttest.Node) {
	t.Helper()
	var set nodes.Set
	for _, node := range all {
		set = append(set, node.Client)
	}
	if running, err := jobs.Running(t.Context(), set); err != nil || len(running) > 0 {
		t.Errorf("still running: %v, %v", running, err)
	}
}

func TestRefused(t *testing.T) {
	t.Run("the environment of a run", func(t *testing.T) {
		all, folder := kept(t, false, "true")
		err := Train(t.Context(), all[0].Config, folder, spec(), io.Discard, io.Discard)
		if fail.ReasonOf(err) != fail.PermissionDenied || !strings.Contains(fail.NextOf(err), "mlenv up") {
			t.Errorf("got %v, next %q", err, fail.NextOf(err))
		}
	})
	t.Run("another training runs", func(t *testing.T) {
		all, folder := kept(t, true, "true")
		other := agent.JobSpec{Launcher: agent.Command, Script: "sleep", Args: []string{"1000"}, Nodes: 2, RanksPerNode: 1}
		if _, err := all[1].Client.StartJob(t.Context(), "other", other); err != nil {
			t.Fatal(err)
		}
		err := Train(t.Context(), all[0].Config, folder, spec(), io.Discard, io.Discard)
		if fail.ReasonOf(err) != fail.EnvironmentBusy || !strings.Contains(err.Error(), "job other runs") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no such script", func(t *testing.T) {
		all, folder := kept(t, true, "true")
		missing := spec()
		missing.Script = "trian.sh"
		err := Train(t.Context(), all[0].Config, folder, missing, io.Discard, io.Discard)
		if fail.ReasonOf(err) != fail.ScriptNotFound || !strings.Contains(err.Error(), `"trian.sh" is neither in the tree nor`) {
			t.Errorf("got %s: %v", fail.ReasonOf(err), err)
		}
	})
	t.Run("a new pod", func(t *testing.T) {
		all, folder := kept(t, true, "true")
		if _, err := all[0].Client.SetNetwork(t.Context(), agent.Network{Mode: agent.TCP}); err != nil {
			t.Fatal(err)
		}
		err := Train(t.Context(), all[0].Config, folder, spec(), io.Discard, io.Discard)
		if fail.ReasonOf(err) != fail.RDMAUnavailable || !strings.Contains(err.Error(), "node 1 has a new pod") {
			t.Errorf("got %v", err)
		}
	})
}

// TestVerdict asks for the end of trainings that were interrupted, some of them only after their last rank had ended.
func TestVerdict(t *testing.T) {
	interrupted, stop := context.WithCancel(t.Context())
	stop()
	of := agent.JobSpec{Nodes: 2, RanksPerNode: 1}
	without := agent.JobStatus{Spec: of, State: agent.Exited, Record: "/record"}
	done := without
	done.Ranks = []agent.RankStatus{{Started: time.Unix(1, 0), Ended: time.Unix(2, 0)}}
	for name, tc := range map[string]struct {
		ctx      context.Context
		statuses []agent.JobStatus
		lost     error
		want     fail.Reason
		says     string
	}{
		"after the end":    {interrupted, []agent.JobStatus{done, done}, nil, "", "The record is /record."},
		"before the end":   {interrupted, []agent.JobStatus{done, {}}, nil, fail.Cancelled, ""},
		"node 0 is lost":   {t.Context(), []agent.JobStatus{{}, done}, fail.Becausef(fail.NodeLost, "gone"), fail.NodeLost, ""},
		"nobody shows why": {t.Context(), []agent.JobStatus{{}, without}, nil, fail.RankFailed, "in /record"},
	} {
		var out strings.Builder
		err := verdict(tc.ctx, server.Config{}, of, tc.statuses, tc.lost, &out)
		if err != nil {
			out.WriteString(err.Error())
		}
		if fail.ReasonOf(err) != tc.want && (err != nil || tc.want != "") || !strings.Contains(out.String(), tc.says) {
			t.Errorf("%s: got %v, %q; want %q, %q", name, err, out.String(), tc.want, tc.says)
		}
	}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]agent.JobSpec{
		"train.py":                                     {Launcher: "auto", Script: "train.py"},
		"train.py A=1 B=x=y -- --steps 5 -- C=2":       {Launcher: "auto", Script: "train.py", Args: []string{"--steps", "5", "--", "C=2"}},
		"-m model.train -- -m x":                       {Launcher: "auto", Script: "-m model.train", Args: []string{"-m", "x"}},
		"--launcher=command train.sh":                  {Launcher: "command", Script: "train.sh"},
		"--launcher deepspeed train.py -- --deepspeed": {Launcher: "deepspeed", Script: "train.py", Args: []string{"--deepspeed"}},
	} {
		got, err := parse(strings.Fields(line))
		if want.Env = map[string]string{}; strings.Contains(line, "A=1") {
			want.Env = map[string]string{"A": "1", "B": "x=y"}
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", line, err, diff)
		}
	}
	for line, want := range map[string]string{
		"": "an argument is missing", "A=1 train.py": "an argument is missing", "train.py --lr 3": `"--lr": want KEY=VALUE; the script's own`,
		"--launcher=mpi train.py": `--launcher: "mpi": want auto`, "--nodes=2 train.py": "flag provided but not defined: -nodes",
		"train.py MLENV_RUN=x": "MLENV_RUN", "-m": "flag needs an argument",
	} {
		if _, err := parse(strings.Fields(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
		var out, said bytes.Buffer
		if code := Main(strings.Fields(line), nil, &out, &said); code != 2 || !strings.Contains(said.String(), "Ctrl-C stops") {
			t.Errorf("%s: exit code %d, %q", line, code, said.String())
		}
	}
	var out bytes.Buffer
	if code := Main([]string{"--help"}, nil, &out, io.Discard); code != 0 || out.String() != usage {
		t.Errorf("exit code %d, %q", code, out.String())
	}
}

func TestScriptOf(t *testing.T) {
	workspace := t.TempDir()
	tree := filepath.Join(workspace, "trees", "abc")
	for _, file := range []string{"trees/abc/train.py", "trees/abc/sub/one.py", "mine.py"} {
		path := filepath.Join(workspace, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(workspace, "repo")
	if err := os.Symlink(tree, link); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ script, folder, want string }{
		{"train.py", link, "train.py"},
		{"one.py", filepath.Join(link, "sub"), "sub/one.py"},
		{filepath.Join(link, "train.py"), workspace, "train.py"},
		{"mine.py", workspace, filepath.Join(workspace, "mine.py")},
		{"train.py", workspace, "train.py"}, // of the tree, though not here
		{"-m model.train", workspace, "-m model.train"},
		{"hostname", link, "hostname"},
	} {
		if got := scriptOf(tc.script, tc.folder, link); got != tc.want {
			t.Errorf("%s in %s: got %s, want %s", tc.script, tc.folder, got, tc.want)
		}
	}
}

// TestLaunchDeepSpeed runs the script in the hostfile's folder with a program in place of the agent that prints its arguments.
func TestLaunchDeepSpeed(t *testing.T) {
	all, folder := kept(t, true, "true")
	script := filepath.Join(folder, ".deepspeed", "launch_deepspeed.sh")
	content, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(script); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("%v, %v: want an executable file", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(folder, "zero3.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	printing := strings.ReplaceAll(string(content), all[0].Config.Program, "/bin/echo")
	for args, want := range map[string]string{
		"":                                    "train_multi_node.py -- --deepspeed --deepspeed_config=ds_config.json",
		"my.py":                               "my.py -- --deepspeed --deepspeed_config=ds_config.json",
		"my.py zero3.json":                    fmt.Sprintf("my.py -- --deepspeed --deepspeed_config=%s/zero3.json", folder),
		"my.py conf.json hostfile --steps 10": "my.py -- --deepspeed --deepspeed_config=conf.json --steps 10",
	} {
		out, err := exec.CommandContext(t.Context(), "sh", append([]string{"-c", printing, script}, strings.Fields(args)...)...).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != "train --launcher=deepspeed "+want {
			t.Errorf("%q: %v, got %q, want %q", args, err, got, want)
		}
	}
}
