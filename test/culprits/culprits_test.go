// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package culprits runs scripts that fail under real launchers, and compares the rank and the reason that a training
// reports with the truth.
package culprits

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// statuses is the file that the unit test of package cause reads. The flag -update writes it and the page.
const statuses = "../../internal/cause/testdata/culprits.json"

// launchers are the launchers with which the agent itself starts the ranks, as the launcher's program would.
var launchers = []agent.Launcher{agent.Torchrun, agent.DeepSpeed}

func TestMain(m *testing.M) { agenttest.Main(m) }

// script is an entry of testdata/scripts.txt.
type script struct {
	name, code string
	// rank is the culprit: a number, any, or port, which stands for rank 0 while its port is in use.
	rank string
	// want is a part of the message. In the file it follows the reason, unless the reason is RankFailed. "rank N" also
	// allows Hang: DeepSpeed's groups ignore the timeout that a script sets.
	want   string
	reason fail.Reason
}

func scripts(t *testing.T) (all []script) {
	t.Helper()
	content, err := os.ReadFile("testdata/scripts.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range strings.Split("\n"+string(content), "\n=== ")[1:] {
		header, code, _ := strings.Cut(entry, "\n")
		fields := strings.Split(header, " | ")
		s := script{name: fields[0], rank: fields[1], want: fields[2], reason: fail.RankFailed, code: code + "\n"}
		if want, ok := strings.CutPrefix(s.want, string(fail.OutOfMemory)+": "); ok {
			s.want, s.reason = want, fail.OutOfMemory
		}
		all = append(all, s)
	}
	return all
}

// place returns the line where the script fails, "" if the script does not mark it.
func (s script) place(file string) string {
	for i, line := range strings.Split(file, "\n") {
		if strings.HasSuffix(line, "# here") {
			return fmt.Sprintf("train.py:%d)", i+1)
		}
	}
	return ""
}

// result is an entry of the file of statuses.
type result struct {
	Name     string            `json:"name"`
	Launcher agent.Launcher    `json:"launcher"`
	Rank     string            `json:"rank"`
	Want     string            `json:"want"`
	Reason   fail.Reason       `json:"reason"`
	Verdict  string            `json:"verdict"`
	Statuses []agent.JobStatus `json:"statuses"`
	// hang reports whether the verdict depends on the stacks of live ranks, which the statuses do not contain.
	hang bool
	// problem describes what is wrong with the verdict, "" if nothing is.
	problem string
}

func TestCulprits(t *testing.T) {
	versions, err := exec.Command("python3", "-c", "import platform, torch, deepspeed; print(f'Python {platform.python_version()}, torch "+
		"{torch.__version__}, DeepSpeed {deepspeed.__version__}')").Output()
	if err != nil {
		t.Fatalf("importing torch and deepspeed: %v; want a python3 in PATH that has them, which make culprits creates", err)
	}
	// DeepSpeed logs a line about its accelerator before the line with the versions.
	lines := strings.Split(strings.TrimSpace(string(versions)), "\n")
	prelude, err := os.ReadFile("testdata/culprits.py")
	if err != nil {
		t.Fatal(err)
	}
	known, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var results []result
	for _, launcher := range launchers {
		for _, s := range scripts(t) {
			t.Run(string(launcher)+"/"+s.name, func(t *testing.T) {
				statuses, verdict := s.run(t, launcher, prelude)
				r := result{Name: s.name, Launcher: launcher, Rank: s.rank, Want: s.want, Reason: s.reason, Verdict: fmt.Sprint(verdict),
					Statuses: statuses, hang: fail.ReasonOf(verdict) == fail.Hang, problem: s.compare(verdict)}
				results = append(results, r)
				t.Logf("%s: %s", fail.ReasonOf(verdict), r.Verdict)
				switch {
				case r.problem == "":
				case strings.Contains(string(known), fmt.Sprintf("\n- %s, %s: ", launcher, s.name)):
					t.Log("as the page says, the verdict is wrong: " + r.problem)
				default:
					t.Error(r.problem)
				}
			})
		}
	}
	text, table := score(results, lines[len(lines)-1])
	fmt.Println(text + "\n" + table)
	if !golden.Section(t, page, "<!-- score: written by make culprits CULPRITS_FLAGS=-update -->\n", text) {
		return
	}
	golden.File(t, "testdata/score.md", "<!-- written by make culprits CULPRITS_FLAGS=-update -->\n\n"+table)
	var records strings.Builder
	for _, r := range results {
		if r.problem == "" && !r.hang && r.Rank != "port" {
			records.WriteString(r.json(t) + "\n")
		}
	}
	if err := os.WriteFile(statuses, []byte(records.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tempFolder matches the folder of a script.
var tempFolder = regexp.MustCompile(regexp.QuoteMeta(os.TempDir()) + `/TestCulprits\S*?/\d{3}/`)

// score returns what the page shows, which is the total and the wrong results, and the table of all results.
func score(results []result, versions string) (text, table string) {
	marks, right := map[string]map[agent.Launcher]string{}, 0
	var names, wrong []string
	for _, r := range results {
		if marks[r.Name] == nil {
			marks[r.Name] = map[agent.Launcher]string{}
			names = append(names, r.Name)
		}
		marks[r.Name][r.Launcher] = "right"
		if r.problem != "" {
			marks[r.Name][r.Launcher] = "**wrong**"
			wrong = append(wrong,
				fmt.Sprintf("- %s, %s: %s; %s\n", r.Launcher, r.Name, tempFolder.ReplaceAllString(strings.ReplaceAll(r.Verdict, "\n", " "), ""),
					r.problem))
		} else {
			right++
		}
	}
	text = fmt.Sprintf("%d of %d are right (%s, %s).\n", right, len(results), time.Now().UTC().Format(time.DateOnly), versions)
	if len(wrong) > 0 {
		text += "\nThe wrong ones:\n\n" + strings.Join(wrong, "")
	}
	table = "| what happens |"
	for _, launcher := range launchers {
		table += fmt.Sprintf(" %s |", launcher)
	}
	table += "\n|" + strings.Repeat(" --- |", 1+len(launchers)) + "\n"
	for _, name := range names {
		table += fmt.Sprintf("| %s |", name)
		for _, launcher := range launchers {
			mark, run := marks[name][launcher]
			if !run {
				mark = "not run"
			}
			table += fmt.Sprintf(" %s |", mark)
		}
		table += "\n"
	}
	return text, table
}

// json returns the entry with the fields that package cause reads.
func (r result) json(t *testing.T) string {
	t.Helper()
	for i, status := range r.Statuses {
		var ranks []agent.RankStatus
		for _, rank := range status.Ranks {
			const lines = 8
			rank.Tail = rank.Tail[max(0, len(rank.Tail)-lines):]
			if rank.Python != nil {
				rank.Python.Traceback = nil
				if !rank.Stopped && rank.Exit.Code == 1 {
					rank.Tail = nil
				}
			}
			ranks = append(ranks, rank)
		}
		r.Statuses[i] = agent.JobStatus{Node: status.Node, State: status.State, Ranks: ranks}
	}
	content, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// file returns the whole script.
func (s script) file() string { return "from culprits import *\n\n" + s.code }

// run trains on two nodes with two ranks each, and returns the verdict.
func (s script) run(t *testing.T, launcher agent.Launcher, prelude []byte) ([]agent.JobStatus, error) {
	training := s.training(t, launcher, prelude)
	result, err := training.Attempt(t.Context())
	return result.Statuses, err
}

func (s script) training(t *testing.T, launcher agent.Launcher, prelude []byte) *train.Training {
	t.Helper()
	e, err := local.Start(t.Context(), local.Options{Folder: t.TempDir(), Name: "job", Nodes: 2, Environ: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Shutdown(), e.Unlock()); err != nil {
			t.Error(err)
		}
	})
	for name, content := range map[string]string{"culprits.py": string(prelude), "train.py": s.file()} {
		if err := os.WriteFile(filepath.Join(e.Workspace, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	port, err := local.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if s.rank == "port" {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
	}
	const timeForATrainingToEnd = 10 * time.Minute
	return &train.Training{
		Deps: train.Deps{Place: e, Clients: &kube.Clients{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Out: t.Output(),
			Notify: func(notify.Event) {}},
		Options: train.Options{Name: "env", ProgressEvery: time.Hour}, Nodes: e.Nodes, ID: "job",
		Spec: agent.JobSpec{
			Run: "run", Launcher: launcher, Script: "train.py", Nodes: 2, RanksPerNode: 2, MasterPort: port,
			Deadline: time.Now().Add(timeForATrainingToEnd),
			Env:      map[string]string{"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "USE_LIBUV": "0"},
		},
	}
}

// TestEnvironments compares the variables of ranks that the agent starts with those that the launcher itself gives them.
func TestEnvironments(t *testing.T) {
	for started, original := range map[agent.Launcher]agent.Launcher{agent.Torchrun: agent.TorchrunLauncher,
		agent.DeepSpeed: agent.DeepSpeedLauncher} {
		want, got := environments(t, original), environments(t, started)
		for rank := range want {
			if diff := cmp.Diff(want[rank], got[rank], cmpopts.IgnoreMapEntries(differs(started))); diff != "" {
				t.Errorf("rank %d: variables (-launcher %s +agent):\n%s", rank, original, diff)
			}
		}
	}
}

// differs reports whether the agent intentionally sets a variable differently from the launcher: see placeRanks in
// package server.
func differs(launcher agent.Launcher) func(name, value string) bool {
	return func(name, _ string) bool {
		switch name {
		case "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE":
			return launcher == agent.Torchrun
		}
		return false
	}
}

// environments returns the variables of the four ranks, without the variables that name the job or its folders.
func environments(t *testing.T, launcher agent.Launcher) (all [4]map[string]string) {
	t.Helper()
	out := t.TempDir()
	s := script{name: "environment", code: `import json, os
with open("` + out + `/" + os.environ["RANK"], "w") as file:
    json.dump(dict(os.environ), file)
`}
	training := s.training(t, launcher, nil)
	if _, err := training.Attempt(t.Context()); err != nil {
		t.Fatalf("%s: %v", launcher, fail.Details(err))
	}
	for rank := range all {
		content, err := os.ReadFile(filepath.Join(out, strconv.Itoa(rank)))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(content, &all[rank]); err != nil {
			t.Fatal(err)
		}
		for name, value := range all[rank] {
			if strings.Contains(value, os.TempDir()) || name == "MASTER_PORT" || name == "MLENV_TRACER" {
				delete(all[rank], name)
			}
			if name == "MASTER_ADDR" { // the network of the nodes is random
				all[rank][name] = filepath.Ext(value)
			}
		}
	}
	return all
}

var (
	rankNamed = regexp.MustCompile(`rank (\d+) on node \d+`)
	rankLeft  = regexp.MustCompile(`rank (\d+) on node \d+ exited with 0 after`)
)

// compare returns what is wrong with a verdict, "" if nothing is.
func (s script) compare(verdict error) string {
	text := fmt.Sprint(verdict)
	// If a rank left, the message names it after the first rank that needed it.
	named := rankLeft.FindStringSubmatch(text)
	if named == nil {
		named = rankNamed.FindStringSubmatch(text)
	}
	switch {
	case verdict == nil:
		return "the training succeeded"
	case named == nil || s.rank != "any" && strings.Replace(s.rank, "port", "0", 1) != named[1]:
		return "want rank " + s.rank
	case fail.ReasonOf(verdict) == fail.Hang && s.want == "rank "+s.rank:
		return ""
	case fail.ReasonOf(verdict) != s.reason || !strings.Contains(text, s.want):
		return fmt.Sprintf("want %s with %q", s.reason, s.want)
	case !strings.Contains(text, s.place(s.file())):
		return "want " + s.place(s.file())
	}
	return ""
}
