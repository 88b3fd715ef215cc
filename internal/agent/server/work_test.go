// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// inTree returns a job of a tree.
func inTree(hash tree.Digest, script string, args ...string) agent.JobSpec {
	spec := command(script, args...)
	spec.Tree = hash
	return spec
}

// folder returns the contents of the files in a folder, by path.
func folder(t *testing.T, path string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(file)
		name, _ := filepath.Rel(path, file)
		found[name] = string(content)
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return found
}

func (n *node) work(job string) string {
	return filepath.Join(n.Config.Paths.Workspace, ".mlenv", "work", job)
}

func (n *node) wantLog(job, want string) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.log(job, "rank-0", 0)); diff != "" {
		n.t.Errorf("log of %s (-want +got):\n%s", job, diff)
	}
}

// TestJobsDoNotShareFiles: of three trainings of one commit two run at the same time. Each writes out/model.pt, changes a file of the
// repository and removes another one.
func TestJobsDoNotShareFiles(t *testing.T) {
	n := newNode(t)
	files := map[string]string{"config.yaml": "lr: 1\n", "data/labels": "a b\n", "pkg/lib.sh": "name=lib\n", "train.sh": `. ./pkg/lib.sh
cat out/model.pt 2>/dev/null
cat config.yaml data/labels
mkdir -p out; echo "of $1" >out/model.pt; echo "of: $1" >>config.yaml; rm data/labels
touch "$THERE/$1"
until [ -e "$THERE/one" ] && [ -e "$THERE/two" ]; do sleep 0.02; done
cat out/model.pt config.yaml
`}
	hash := n.Sync(files)
	there := t.TempDir()
	start := func(job string) {
		t.Helper()
		spec := inTree(hash, "train.sh", job)
		spec.Env = map[string]string{"THERE": there}
		if _, err := n.Client.StartJob(t.Context(), job, spec); err != nil {
			t.Fatal(err)
		}
	}
	start("one")
	start("two")
	for _, job := range []string{"one", "two", "three"} {
		if job == "three" {
			start(job)
		}
		if status := n.wait(job); status.Ranks[0].Exit.Code != 0 || status.Work != n.work(job) {
			t.Errorf("%s: %+v in %s, want exit code 0 in %s", job, status.Ranks, status.Work, n.work(job))
		}
		n.wantLog(job, fmt.Sprintf("lr: 1\na b\nof %[1]s\nlr: 1\nof: %[1]s\n", job))
	}
	n.End() // waits until the jobs have left
	for _, job := range []string{"one", "two", "three"} {
		want := map[string]string{"out/model.pt": "of " + job + "\n", "config.yaml": "lr: 1\nof: " + job + "\n"}
		if diff := cmp.Diff(want, folder(t, n.work(job))); diff != "" {
			t.Errorf("left by %s (-want +got):\n%s", job, diff)
		}
	}
	if diff := cmp.Diff(files, folder(t, filepath.Join(n.Config.Paths.Workspace, ".mlenv", "trees", string(hash)))); diff != "" {
		t.Errorf("the tree (-want +got):\n%s", diff)
	}
}

// TestNodesShareAWorkingDirectory: the first node of a shared claim ends long before the second one, which still reads the repository.
func TestNodesShareAWorkingDirectory(t *testing.T) {
	nodes := agenttest.StartWith(t, 2, agenttest.Options{Shared: true})
	first, second := &node{t, nodes[0]}, &node{t, nodes[1]}
	hash := first.Sync(map[string]string{"late.txt": "late\n", "train.sh": `echo $NODE_RANK >part-$NODE_RANK
[ $NODE_RANK = 0 ] && exit
until [ -e go ]; do sleep 0.02; done
cat late.txt part-*`})
	spec := inTree(hash, "train.sh")
	spec.Nodes = 2
	for _, n := range []*node{first, second} {
		if _, err := n.Client.StartJob(t.Context(), "job", spec); err != nil {
			t.Fatal(err)
		}
	}
	first.wait("job")
	first.End() // waits until it has left
	if err := os.WriteFile(filepath.Join(second.work("job"), "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	second.wait("job")
	if got := second.log("job", "rank-1", 0); got != "late\n0\n1\n" {
		t.Errorf("node 1 printed %q, want the file of the repository and both parts", got)
	}
	second.End()
	if diff := cmp.Diff(map[string]string{"go": "", "part-0": "0\n", "part-1": "1\n"}, folder(t, second.work("job"))); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestAttemptsShareFiles: the second attempt finds what the first one wrote, and the whole repository. The job that resumes both finds
// their checkpoint, but no file of theirs in its own working directory.
func TestAttemptsShareFiles(t *testing.T) {
	n := newNode(t)
	hash := n.Sync(map[string]string{"train.sh": `cat lib.txt; [ -e ckpt/latest ] && cat ckpt/latest
mkdir -p ckpt/step-$MLENV_ATTEMPT; echo weights >ckpt/step-$MLENV_ATTEMPT/model; echo step-$MLENV_ATTEMPT >ckpt/latest`, "lib.txt": "lib\n",
		"pretrained/checkpoint-1/trainer_state.json": "{}", "resumed.sh": "ls; echo $MLENV_EARLIER_WORK ${MLENV_LAST_CHECKPOINT-none}"})
	spec := inTree(hash, "train.sh")
	n.run("job", spec)
	n.wantLog("job", "lib\n")
	spec.Attempts = []agent.Attempt{{Attempt: 1}}
	n.run("job", spec)
	n.wantLog("job", "lib\nstep-1\n")

	if status := n.run("silent", inTree(hash, "resumed.sh")); status.Work != "" { // it writes nothing
		t.Errorf("a job that wrote nothing has the working directory %s, want none", status.Work)
	}
	n.End()
	n.Restart()
	if _, err := os.Stat(n.work("silent")); !os.IsNotExist(err) {
		t.Errorf("the working directory of a job that wrote nothing: %v, want it deleted", err)
	}
	resumed := inTree(hash, "resumed.sh")
	resumed.Run, resumed.Env = "second", map[string]string{agent.ResumeVariable: "run"}
	n.run("resumed", resumed)
	n.wantLog("resumed", "lib.txt\npretrained\nresumed.sh\ntrain.sh\n"+n.work("job")+" none\n")
	for series, want := range map[string][]string{"": nil, "another": nil, "run": {"job ckpt/step-2"}} {
		found, err := n.Client.Checkpoints(t.Context(), agent.CheckpointSearch{Folder: "checkpoints/run", Job: "resumed", Series: series})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range found {
			if c.Missing == "" {
				got = append(got, c.Job+" "+c.Name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("checkpoints of series %q (-want +got):\n%s", series, diff)
		}
	}
	resumed.Checkpoint, resumed.CheckpointJob = new("ckpt/step-2"), "job"
	resumed.Attempts = []agent.Attempt{{Attempt: 1}}
	n.run("resumed", resumed)
	if got, want := n.log("resumed", "rank-0", 0), n.work("job")+" "+n.work("job")+"/ckpt/step-2\n"; !strings.HasSuffix(got, want) {
		t.Errorf("attempt 2 printed %q, want %q at its end", got, want)
	}
	resumed.CheckpointJob = "../runs"
	if _, err := n.Client.StartJob(t.Context(), "wrong", resumed); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("got %v, want InvalidInput", err)
	}
}

// TestRefusedJobLeavesNothing: a job that does not start uses no disk.
func TestRefusedJobLeavesNothing(t *testing.T) {
	n := newNode(t)
	hash := n.Sync(map[string]string{"train.sh": "true"})
	if _, err := n.Client.StartJob(t.Context(), "job", inTree(hash, "nosuch.sh")); fail.ReasonOf(err) != fail.ScriptNotFound {
		t.Errorf("got %v, want ScriptNotFound", err)
	}
	if left, err := os.ReadDir(n.work("")); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v; want nothing", left, err)
	}
}

// TestAgentKilledDuringAJob: the next agent of the node cleans the working directory, and keeps what the job wrote.
func TestAgentKilledDuringAJob(t *testing.T) {
	n := newNode(t)
	hash := n.Sync(map[string]string{"train.sh": "echo x >out; touch started; exec sleep 1000"})
	if _, err := n.Client.StartJob(t.Context(), "job", inTree(hash, "train.sh")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(timeForAJobToEnd); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(n.work("job"), "started")); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	// An agent that is killed leaves the files as they are now. In a test it can only end, which cleans them.
	saved := t.TempDir()
	if err := os.CopyFS(saved, os.DirFS(n.work(""))); err != nil {
		t.Fatal(err)
	}
	n.End()
	if err := os.RemoveAll(n.work("")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(n.work(""), os.DirFS(saved)); err != nil {
		t.Fatal(err)
	}
	n.Restart()
	n.End() // waits for the cleaning
	want := map[string]string{"job/out": "x\n", "job/started": ""}
	if diff := cmp.Diff(want, folder(t, n.work(""))); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
