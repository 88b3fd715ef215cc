// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	nodeview "github.com/ml-dev-env/ml-dev-env/internal/cli/live"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/ops"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

// output runs a command, and returns what it prints.
func output(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out locked.Buffer
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(t.Output())
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// prints fails unless the command prints all wanted texts.
func prints(t *testing.T, want []string, cmd *cobra.Command, args ...string) {
	t.Helper()
	got, err := output(t, cmd, args...)
	if err != nil {
		t.Errorf("%s %q: %s\n%s", cmd.Name(), args, fail.Details(err), got)
	}
	for _, text := range want {
		if !strings.Contains(got, text) {
			t.Errorf("%s %q: want %q in:\n%s", cmd.Name(), args, text, got)
		}
	}
}

// receiptOf returns the receipt as mlenv receipt prints it.
func receiptOf(t *testing.T, name string) (r receipt.Receipt) {
	t.Helper()
	text, err := output(t, ReceiptCommand(), name, "--output=json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &r)
	}
	if err != nil {
		t.Fatal(fail.Details(err))
	}
	return r
}

// A local run leaves a receipt, its logs and its files, which the commands of runs on a cluster show without a cluster.
func TestLocalReceipt(t *testing.T) {
	script := says + `
import json
open("out.txt", "w").write("x")
open("../beside.bin", "wb").write(bytes(2 << 20))
open(os.environ["MLENV_METRICS_FILE"], "a").write(json.dumps({"step": 7, "loss": 0.5}) + "\n") if rank == 0 else None
`
	var out locked.Buffer
	err := locally(t.Context(), t, &out, script, "--launcher=torchrun", "--run-name=try-1", "--", "--lr", "1")
	if err != nil {
		t.Fatal(fail.Details(err), out.String())
	}
	for _, want := range []string{"MB in 1 file of ", "/work/beside.bin. They do not belong to the run",
		"Run try-1 succeeded after ", "receipt: mlenv receipt try-1", "files:   mlenv fetch try-1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in:\n%s", want, out.String())
		}
	}
	r := receiptOf(t, "try-1")
	of, _ := local.Find("try-1")
	if r.Verdict != receipt.Succeeded || len(r.Ranks) != 2 || len(r.Nodes) != 2 || len(r.Phases) != 2 || r.Training.Script != "train.py" ||
		r.Repository != receipt.Folder || r.Tree == "" || r.Record.Folder != of.Dir() || r.Record.Work == "" || r.Curve == nil ||
		r.Ended.IsZero() {
		t.Errorf("the receipt lacks something: %+v", r)
	}
	prints(t, []string{"try-1 (local)", "verdict", "Succeeded", "sync-repo", "exit code 0"}, ReceiptCommand(), "try-1")
	prints(t, []string{"(local)", "try-1", "Succeeded"}, ListCommand(), "--local")
	prints(t, []string{"(local)", "try-1"}, ListCommand())
	prints(t, []string{`"local": true`, `"state": "Succeeded"`}, ListCommand(), "--local", "--output=json")
	prints(t, []string{"try-1 (local)", "Succeeded", "step 7"}, StatusCommand(), "try-1")
	prints(t, []string{"try-1 (local)"}, StatusCommand()) // the newest one
	prints(t, []string{"Run try-1 on this machine", "[0 0] rank 0 of 2", "Run try-1 succeeded"}, LogsCommand(), "try-1")
	prints(t, []string{"rank 1 of 2 on 1 ['--lr', '1']"}, LogsCommand(), "try-1", "--rank=1")
	prints(t, []string{"rank 1 of 2 on 1"}, LogsCommand(), "try-1", "--rank=1", "--follow")
	if got, err := output(t, LogsCommand(), "try-1", "--tail=1"); err != nil || strings.Count(got, "\n") != 1 ||
		!strings.Contains(got, "mlenv fetch try-1") {
		t.Errorf("the last line: %q, %v", got, err)
	}
	var told locked.Buffer
	fetch := FetchCommand()
	fetch.SetOut(t.Output())
	fetch.SetErr(&told)
	fetch.SetArgs([]string{"try-1", "--to=" + t.TempDir()})
	if err := fetch.ExecuteContext(t.Context()); err != nil || !strings.Contains(told.String(), "Reading ") ||
		strings.Contains(told.String(), "not found") {
		t.Errorf("fetching from a run without checkpoints: %v, told %q; want no word about them", err, told.String())
	}
	page := filepath.Join(t.TempDir(), "page.html")
	prints(t, []string{"The report of run try-1 (local) is "}, ReceiptCommand(), "try-1", "--html="+page)
}

// fetch copies what a local run left, as from a claim.
func TestLocalFetch(t *testing.T) {
	err := locally(t.Context(), t, io.Discard, `import os
open("out.txt", "w").write("x")
folder = os.path.join(os.environ["MLENV_WORKSPACE"], "checkpoints", os.environ["MLENV_RUN"], "step-7")
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, "model.pt"), "w").write("y")
`, "--nodes=1", "--run-name=try-1")
	if err != nil {
		t.Fatal(fail.Details(err))
	}
	to := t.TempDir()
	prints(t, []string{" files, "}, FetchCommand(), "try-1", "--to="+to)
	for name, want := range map[string]string{"work/out.txt": "x", "checkpoints/try-1/step-7/model.pt": "y"} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"logs/rank-0.log", "logs/output.log", "logs/receipt.json"} {
		if _, err := os.Stat(filepath.Join(to, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(to, "logs", agent.GivenFile)); !os.IsNotExist(err) {
		t.Errorf("the params of the command line, which may have keys: %v; want that they stay", err)
	}
	if _, err := os.Stat(filepath.Join(to, "work/train.py")); !os.IsNotExist(err) {
		t.Errorf("work/train.py: %v; want only what the script wrote", err)
	}
	of, _ := local.Find("try-1")
	prints(t, []string{"1 file"}, FetchCommand(), "try-1", filepath.Join(of.Folder, "checkpoints", "try-1"), "--to="+t.TempDir())
	_, err = output(t, FetchCommand(), "try-1", "none", "--to="+t.TempDir())
	if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), of.Folder) || strings.Contains(err.Error(), "/workspace") {
		t.Errorf("got %v, want InvalidInput with the folder of this machine", err)
	}
}

// A failed local run has its cause in the receipt, and the next command is one that works.
func TestLocalFailedReceipt(t *testing.T) {
	err := locally(t.Context(), t, io.Discard, says+"if rank == 1:\n    raise ValueError('broken batch')\nimport time; time.sleep(600)",
		"--run-name=try-1")
	if got := fail.NextOf(err); got != "mlenv logs try-1 --rank=1" {
		t.Errorf("the next command is %q", got)
	}
	r := receiptOf(t, "try-1")
	if r.Verdict != receipt.Failed || r.Reason != fail.RankFailed || r.Cause == nil || r.Cause.Rank != 1 ||
		r.Cause.Python.Type != "ValueError" {
		t.Errorf("the receipt is %+v", r)
	}
	prints(t, []string{"Failed", "RankFailed", "train"}, ListCommand(), "--local")
	prints(t, []string{"ValueError: broken batch"}, LogsCommand(), "try-1", "--rank=1")
}

// Other processes see a local run while it is in progress, and delete nothing of it.
func TestLocalInProgress(t *testing.T) {
	withoutCluster(t)
	t.Setenv("TMPDIR", t.TempDir())
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- locally(ctx, t, writer, `import os, time
if os.environ["RANK"] == "0":
    open(os.environ["MLENV_METRICS_FILE"], "a").write('{"step": 7, "steps": 9, "loss": 0.5}\n')
print("sleeping", flush=True)
time.sleep(600)
`, "--run-name=try-1", "--launcher=torchrun")
		_ = writer.Close()
	}()
	lines := bufio.NewScanner(reader)
	for seen := 0; seen < 2 && lines.Scan(); {
		if strings.Contains(lines.Text(), "sleeping") {
			seen++
		}
	}
	if scratch, err := os.ReadDir(os.TempDir()); err != nil || len(scratch) != 1 {
		t.Errorf("temporary files in %v, %v; want one folder, which the lock names", scratch, err)
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		_, _ = io.Copy(io.Discard, reader)
	}()
	prints(t, []string{"(local)", "Running", "train"}, ListCommand(), "--local")
	prints(t, []string{"Running", "1 of 1", "step 7"}, StatusCommand(), "try-1")
	prints(t, []string{"try-1: step 7 of 9", "1 of 1"}, nodeview.TopCommand(), "try-1", "--once")
	prints(t, []string{"try-1: step 7 of 9"}, nodeview.TopCommand(), "--once")
	prints(t, []string{"local run try-1: 2 nodes", "agent: answers", "job try-1"}, ops.DoctorCommand(), "try-1")
	prints(t, []string{"local run try-1: 2 nodes"}, ops.DoctorCommand())
	if _, err := output(t, ops.DoctorCommand(), "--namespace=ns"); err == nil || strings.Contains(err.Error(), "try-1") {
		t.Errorf("with a namespace: %v, want an environment of the cluster", err)
	}
	if got := pageOf(t, "try-1"); !strings.Contains(got, "try-1") {
		t.Errorf("the page is %s", got)
	}
	of, _ := local.Find("try-1")
	if of.Process() != os.Getpid() {
		t.Errorf("the run's process is %d, want %d", of.Process(), os.Getpid())
	}
	_, err := output(t, PruneCommand(), "--local", "--yes", "try-1")
	if fail.ReasonOf(err) != fail.EnvironmentBusy {
		t.Errorf("deleting it: %v, want EnvironmentBusy", err)
	}
	if err := of.Remove(); fail.ReasonOf(err) != fail.EnvironmentBusy {
		t.Errorf("deleting it without a question: %v, want EnvironmentBusy", err)
	}
	prints(t, nil, PruneCommand(), "--local", "--yes") // those that have ended
	if _, err := output(t, ReceiptCommand(), "try-1"); err == nil || !strings.Contains(err.Error(), "Running") {
		t.Errorf("its receipt: %v, want that it has none", err)
	}
	if _, err := output(t, CancelCommand(), "try-1"); !strings.HasPrefix(fail.NextOf(err), "kill "+strconv.Itoa(os.Getpid())) {
		t.Errorf("cancelling it: %v, want what ends it", err)
	}
	var followed bytes.Buffer
	follow := make(chan error, 1)
	go func() {
		cmd := LogsCommand()
		cmd.SetOut(&followed)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"try-1", "--follow"})
		follow <- cmd.ExecuteContext(t.Context())
	}()
	interrupt()
	if err := <-ended; fail.ReasonOf(err) != fail.Cancelled {
		t.Errorf("got %v, want Cancelled", err)
	}
	<-rest
	if err := <-follow; err != nil || !strings.Contains(followed.String(), "Stopping the training") {
		t.Errorf("following it: %v\n%s", err, followed.String())
	}
	prints(t, []string{"Cancelled"}, ListCommand(), "--local")
	for _, cmd := range []*cobra.Command{nodeview.TopCommand(), ops.DoctorCommand(), nodeview.UICommand()} {
		if _, err := output(t, cmd, "try-1"); fail.ReasonOf(err) != fail.EnvironmentMissing || fail.NextOf(err) != "mlenv receipt try-1" {
			t.Errorf("%s: %v, want EnvironmentMissing, with the receipt", cmd.Name(), err)
		}
	}
	if r, ok := local.InProgress(); ok {
		t.Errorf("%s is in progress", r.Name)
	}
}

// pageOf returns the page that mlenv ui serves.
func pageOf(t *testing.T, name string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	served := make(chan error, 1)
	go func() {
		cmd := nodeview.UICommand()
		cmd.SetOut(writer)
		cmd.SetErr(t.Output())
		cmd.SetArgs([]string{name})
		err := cmd.ExecuteContext(ctx)
		_ = writer.CloseWithError(err)
		served <- err
	}()
	defer func() { stop(); <-served }()
	line, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Get(regexp.MustCompile(`http://\S+`).FindString(line) + "state")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", line, text, err)
	}
	return string(text)
}

// The first command that looks at a run whose mlenv was killed writes its receipt. What its nodes have recorded decides.
func TestLocalKilled(t *testing.T) {
	exited := func(code int) *agent.JobStatus {
		return &agent.JobStatus{ID: "try-1", State: agent.Exited, Launcher: agent.Exit{Code: code}, Spec: agent.JobSpec{Run: "try-1",
			Launcher: agent.Command, Script: "train.sh", Nodes: 1, RanksPerNode: 1}}
	}
	running := *exited(0)
	running.State = agent.Running
	for name, tc := range map[string]struct {
		node   *agent.JobStatus
		reason fail.Reason
		want   string
	}{
		"no node has ended": {&running, fail.NodeLost, "mlenv was killed"},
		"a node failed":     {exited(3), fail.RankFailed, "node 0 ended as exited with exit code 3"},
		"all succeeded":     {exited(0), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			withoutCluster(t)
			folder, err := local.Folder()
			if err != nil {
				t.Fatal(err)
			}
			e, err := local.Start(t.Context(), local.Options{Folder: folder, Name: "try-1", Nodes: 1, Environ: os.Environ()})
			if err != nil {
				t.Fatal(err)
			}
			here, err := receipt.Dir(e.Dir()).BeginJournal(receipt.Start{Run: "try-1", RunUID: "try-1", Environment: "try-1"})
			if err != nil {
				t.Fatal(err)
			}
			here.Writer(t.Context(), command.TextLog(io.Discard), trainTask)
			prints(t, []string{"Running"}, ListCommand(), "--local")
			dir := record.Dir(e.Dir())
			if err := errors.Join(record.WriteJSON(dir.NodeStatus(0), tc.node), e.Shutdown(), e.Unlock()); err != nil {
				t.Fatal(err)
			}
			if r := receiptOf(t, "try-1"); r.Reason != tc.reason || !strings.Contains(r.Message, tc.want) || r.Ended.IsZero() {
				t.Errorf("the receipt is %+v", r)
			}
			if r := receiptOf(t, "try-1"); tc.reason != "" && r.Phases[0].Reason != tc.reason {
				t.Errorf("its phase ended with %s, want %s", r.Phases[0].Reason, tc.reason)
			}
			if _, err := os.Stat(filepath.Join(e.Dir(), "receipt.json")); err != nil {
				t.Error(err)
			}
			if node, err := dir.ReadNode(0); err != nil || node.State == agent.Running {
				t.Errorf("the record of its node is %+v, %v; want that it has ended, because a running job keeps its tree", node, err)
			}
		})
	}
}

// A run that resumes another one has its params, except those that are given, and its name.
func TestLocalResume(t *testing.T) {
	const script = `import os, sys; print("resumed", os.environ.get("MLENV_RESUME_FROM"), os.environ["KEY"], sys.argv[1:], flush=True)`
	if err := locally(t.Context(), t, io.Discard, script, "--nodes=1", "--run-name=try-1", "--launcher=command", "--env=KEY=mine", "--",
		"--lr", "1"); err != nil {
		t.Fatal(fail.Details(err))
	}
	for i, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--resume-from=try-1"}, "resumed try-1 mine ['--lr', '1']"},
		{[]string{"--resume-from=try-2", "--", "--lr", "2"}, "resumed try-1 mine ['--lr', '2']"},
		{[]string{"--like=try-1"}, "resumed None mine ['--lr', '1']"},
	} {
		cmd := RunCommand(mldevenv.Bundle)
		got, err := output(t, cmd, append([]string{"--local", "--run-name=try-" + strconv.Itoa(i+2)}, tc.args...)...)
		if err != nil || !strings.Contains(got, tc.want) {
			t.Errorf("%q: %v; want %q in:\n%s", tc.args, err, tc.want, got)
		}
		if told := strings.Contains(got, "Resuming run try-1: "); told != strings.Contains(tc.want, "resumed try-1") {
			t.Errorf("%q: it reports what it resumes from: %t\n%s", tc.args, told, got)
		}
	}
	if r := receiptOf(t, "try-3"); r.Training.ResumedFrom != "try-1" {
		t.Errorf("the receipt names %q, want the first run", r.Training.ResumedFrom)
	}
	_, err := output(t, RunCommand(mldevenv.Bundle), "--local", "--resume-from=none")
	if fail.ReasonOf(err) != fail.InvalidInput || fail.NextOf(err) != "mlenv runs --local" {
		t.Errorf("got %v, want InvalidInput", err)
	}
}

// What a run in progress resumes from stays, in which runs of its series the files may be.
func TestLocalPruneKeepsTheSeries(t *testing.T) {
	for _, args := range [][]string{{"--run-name=try-1"}, {"--run-name=try-2", "--resume-from=try-1"}, {"--run-name=other"}} {
		if err := locally(t.Context(), t, io.Discard, `open("out.txt", "w")`, append(args, "--nodes=1", "--launcher=command")...); err != nil {
			t.Fatal(fail.Details(err))
		}
	}
	of, _ := local.Find("try-2")
	lock, err := os.OpenFile(filepath.Join(of.Dir(), "lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil { // as in progress
		t.Fatal(err)
	}
	_, err = output(t, PruneCommand(), "--local", "--yes", "try-1")
	if fail.ReasonOf(err) != fail.EnvironmentBusy || !strings.Contains(err.Error(), "try-2") {
		t.Errorf("deleting try-1: %v, want EnvironmentBusy for try-2", err)
	}
	prints(t, []string{"Local run other is deleted."}, PruneCommand(), "--local", "--yes")
	if _, err := os.Stat(filepath.Join(of.Folder, agent.WorkFolder, "try-1", "out.txt")); err != nil {
		t.Error(err)
	}
}

// A whole checkpoint in a working directory is deleted only with a run that is named, and the question names it.
func TestLocalPruneKeepsCheckpoints(t *testing.T) {
	for name, script := range map[string]string{"saved": `import os
os.makedirs("out/step-7")
open("out/step-7/mp_rank_00_model_states.pt", "w").write("x")
open("out/latest", "w").write("step-7")`, "other": ""} {
		if err := locally(t.Context(), t, io.Discard, script, "--nodes=1", "--launcher=command", "--run-name="+name); err != nil {
			t.Fatal(fail.Details(err))
		}
	}
	of, _ := local.Find("saved")
	path := filepath.Join(of.Folder, agent.WorkFolder, "saved", "out/step-7")
	prints(t, []string{"Local run other is deleted."}, PruneCommand(), "--local", "--yes")
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	var asked locked.Buffer
	cmd := PruneCommand()
	cmd.SetIn(strings.NewReader("yes\n"))
	cmd.SetOut(io.Discard)
	cmd.SetErr(&asked)
	cmd.SetArgs([]string{"--local", "saved"})
	want := "whole checkpoint " + path + ".\nDelete 1 local run,"
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(asked.String(), want) {
		t.Errorf("%v; it asks: %s", err, asked.String())
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%v, want it deleted", err)
	}
}

// Runs that have ended are deleted by one command; checkpoints stay.
func TestLocalPrune(t *testing.T) {
	for _, name := range []string{"try-1", "try-2", "try-3"} {
		if err := locally(t.Context(), t, io.Discard, `open("out.txt", "w")`, "--nodes=1", "--launcher=command", "--run-name="+name); err != nil {
			t.Fatal(fail.Details(err))
		}
	}
	of, _ := local.Find("try-1")
	checkpoint := filepath.Join(of.Folder, "checkpoints", "try-1")
	if err := os.MkdirAll(checkpoint, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := output(t, PruneCommand(), "--local", "--yes", "try-1", "none"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("got %v, want InvalidInput", err)
	}
	if _, err := output(t, PruneCommand(), "--local"); err == nil {
		t.Error("it deletes without an answer")
	}
	prints(t, []string{"try-1", "try-2", "try-3"}, ListCommand(), "--local")
	prints(t, []string{"Local run try-2 is deleted."}, PruneCommand(), "--local", "--yes", "try-2")
	prints(t, []string{"Local run try-1 is deleted.", "Local run try-3 is deleted."}, PruneCommand(), "--local", "--yes")
	var left []string
	err := filepath.WalkDir(filepath.Join(of.Folder, ".mlenv"), func(path string, _ os.DirEntry, err error) error {
		if strings.Contains(path, "try-") {
			left = append(left, path)
		}
		return err
	})
	if _, gone := os.Stat(checkpoint); err != nil || left != nil || gone != nil {
		t.Errorf("left are %q (%v); the checkpoint: %v", left, err, gone)
	}
}

// A flag that chooses a cluster or a namespace means runs of the cluster.
func TestLocalNames(t *testing.T) {
	if err := locally(t.Context(), t, io.Discard, "", "--nodes=1", "--launcher=command", "--run-name=try-1"); err != nil {
		t.Fatal(fail.Details(err))
	}
	for _, cmd := range []*cobra.Command{ReceiptCommand(), StatusCommand(), LogsCommand(), FetchCommand(), CancelCommand()} {
		if _, err := output(t, cmd, "try-1", "-n", "team"); err == nil || !strings.Contains(err.Error(), "looking for a cluster") {
			t.Errorf("%s: %v, want the cluster's run", cmd.Name(), err)
		}
	}
	_, err := output(t, ListCommand(), "--local", "-n", "team")
	if err == nil {
		t.Error("mlenv runs --local -n team: want wrong usage")
	}
	if names := LocalNames(); !slices.Equal(names, []string{"try-1"}) {
		t.Errorf("completion has %q", names)
	}
	for flag, want := range map[string]string{"--task=provision": "one log", "--since=1m": "no times"} {
		_, err := output(t, LogsCommand(), "try-1", flag)
		var exit *command.Exit
		if !errors.As(err, &exit) || exit.Code != command.WrongUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want wrong usage", flag, err)
		}
	}
}

// A cluster that does not answer hides no run of this machine.
func TestLocalWithoutAnswer(t *testing.T) {
	if err := locally(t.Context(), t, io.Discard, "", "--nodes=1", "--launcher=command", "--run-name=try-1"); err != nil {
		t.Fatal(fail.Details(err))
	}
	// The port of a closed listener refuses connections.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, namespace: team}}],
clusters: [{name: a, cluster: {server: "https://%s"}}]}`, listener.Addr())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", file)
	prints(t, []string{"try-1 (local)", "Succeeded"}, StatusCommand())
	prints(t, []string{"try-1"}, ListCommand())
	_, err = output(t, StatusCommand(), "try-2")
	if fail.ReasonOf(err) != fail.APIServerUnreachable {
		t.Errorf("a run that is not here: %v, want APIServerUnreachable", err)
	}
}

// The example for GitHub needs no secret, and its commands train and write the report.
func TestLocalExample(t *testing.T) {
	withoutCluster(t)
	content, err := os.ReadFile("../../../docs/examples/github/local.yml")
	if err != nil {
		t.Fatal(err)
	}
	workflow := string(content)
	if strings.Contains(workflow, "secrets.") || !strings.Contains(workflow, "\non: pull_request\n") || strings.Contains(workflow, "write") {
		t.Error("the workflow has a secret, a right, or another trigger than pull_request")
	}
	t.Chdir(t.TempDir())
	t.Setenv("RUNNER_TEMP", ".")
	if err := os.WriteFile("train.py", []byte(says), 0o644); err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)run: mlenv (run|receipt) (.*)$`).FindAllStringSubmatch(workflow, -1)
	if len(commands) != 2 {
		t.Fatalf("the workflow has %d commands of mlenv, want 2", len(commands))
	}
	prints(t, []string{"rank 1 of 2 on 1 ['--steps', '20']"}, RunCommand(mldevenv.Bundle), strings.Fields(commands[0][2])...)
	args := strings.ReplaceAll(os.ExpandEnv(commands[1][2]), `"`, "")
	prints(t, []string{"report.html"}, ReceiptCommand(), strings.Fields(args)...)
	if page, err := os.ReadFile("report.html"); err != nil || !strings.Contains(string(page), "two-nodes (local)") {
		t.Errorf("the report: %v", err)
	}
}

// The goodput of a local run that was restarted is in its receipt.
func TestLocalGoodput(t *testing.T) {
	const script = `import json, os, time
first = not os.path.exists(os.path.join(os.environ["MLENV_WORKSPACE"], "tried"))
open(os.path.join(os.environ["MLENV_WORKSPACE"], "tried"), "w").close()
for step in range(1, 11) if first else range(6, 21):
    time.sleep(0.05)
    open(os.environ["MLENV_METRICS_FILE"], "a").write(json.dumps({"step": step, "time": time.time()}) + "\n")
if first:
    raise ValueError("once")
`
	if err := locally(t.Context(), t, io.Discard, script, "--nodes=1", "--max-restarts=1", "--run-name=try-1"); err != nil {
		t.Fatal(fail.Details(err))
	}
	r := receiptOf(t, "try-1")
	g := r.Goodput
	if g == nil || !g.Measured || len(r.Attempts) != 2 || r.User == "" {
		t.Fatalf("goodput %+v, attempts %+v, user %q", g, r.Attempts, r.User)
	}
	// The steps 1 to 5 and 6 to 20 lasted, 6 to 10 were done again.
	if s := g.Seconds; s.Steps < 0.8 || s.Repeated < 0.2 || s.Starting <= 0 || s.Hang != 0 || s.Waiting != 0 ||
		math.Abs(s.Total()-r.Ended.Sub(r.Started).Seconds()) > 0.01 {
		t.Errorf("goodput %+v of a run of %s", *g, r.Ended.Sub(r.Started))
	}
}

func TestLastLines(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for _, tc := range []struct {
		content string
		count   int64
		want    string
		hole    int64 // bytes before the content, which need no disk; nobody reads them
	}{
		{"a\nb\nc\n", 2, "b\nc\n", 0}, {"a\nb\nc", 2, "b\nc", 0}, {"a\nb\n", 5, "a\nb\n", 0}, {"", 3, "", 0}, {"\n\n\n", 2, "\n\n", 0},
		{"a\n" + long + "\n" + long + "\n", 2, long + "\n" + long + "\n", 0}, {"a\n" + long, 1, long, 0}, {"a\nb\nc\n", 2, "b\nc\n", 64 << 30},
	} {
		path := filepath.Join(t.TempDir(), "log")
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteAt([]byte(tc.content), tc.hole); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := lastLines(&out, file, tc.count); err != nil || out.String() != tc.want {
			t.Errorf("%d lines of %d bytes: got %d bytes, %v; want %d", tc.count, len(tc.content), out.Len(), err, len(tc.want))
		}
	}
}
