// SPDX-License-Identifier: Apache-2.0

package culprits

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// page is the page with the scores.
const page = "../../docs/project/culprits.md"

// failure is an entry of testdata/logs.txt, or of testdata/torch.txt, which has what torch printed in runs on CPUs with gloo, without most
// frames: the ranks of a training, in the order in which they end, two on each node.
//
//	=== what happens | culprit | reason | part of the message or advice [| known to be wrong, because ...]
//	--- rank | exit code or signal [| stopped] [| killed for memory]
//
// A rank is stopped if the agent or a launcher ended it by a signal, and killed for memory if the kernel killed it to free memory. A line
// has at most one of the two.
//
// The culprit may be any. A line @NAME ARGUMENT... stands for the lines of blocks.txt below "=== NAME", in which $1, $2 and so on stand
// for the arguments, and $n for all from the n-th on is written $n+.
type failure struct {
	name, culprit, want, wrong string
	reason                     fail.Reason
	ranks                      []agent.RankStatus
}

func entries(t *testing.T, file string) (all [][2]string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range strings.Split("\n"+string(content), "\n=== ")[1:] {
		header, text, _ := strings.Cut(entry, "\n")
		all = append(all, [2]string{header, strings.TrimSuffix(text, "\n") + "\n"})
	}
	return all
}

var (
	block    = regexp.MustCompile(`(?m)^@(\w+)(?: (.*))?$`)
	argument = regexp.MustCompile(`\$(\d)(\+?)`)
)

// expand replaces the lines that stand for blocks.
func expand(text string, blocks map[string]string) string {
	for block.MatchString(text) {
		text = block.ReplaceAllStringFunc(text, func(line string) string {
			match := block.FindStringSubmatch(line)
			arguments := strings.Fields(match[2])
			return strings.TrimSuffix(argument.ReplaceAllStringFunc(blocks[match[1]], func(use string) string {
				parts := argument.FindStringSubmatch(use)
				n, _ := strconv.Atoi(parts[1])
				if n > len(arguments) {
					return "?"
				}
				if parts[2] != "" {
					return strings.Join(arguments[n-1:], " ")
				}
				return arguments[n-1]
			}), "\n")
		})
	}
	return text
}

func failures(t *testing.T) (all []failure) {
	t.Helper()
	blocks := map[string]string{}
	for _, b := range entries(t, "blocks.txt") {
		blocks[b[0]] = b[1]
	}
	start := time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)
	for _, entry := range slices.Concat(entries(t, "logs.txt"), entries(t, "torch.txt")) {
		fields := append(strings.Split(entry[0], " | "), "")
		f := failure{name: fields[0], culprit: fields[1], reason: fail.Reason(fields[2]), want: fields[3], wrong: fields[4]}
		for i, text := range strings.Split("\n"+entry[1], "\n--- ")[1:] {
			header, log, _ := strings.Cut(text, "\n")
			fields := strings.Split(header, " | ")
			number, err := strconv.Atoi(fields[0])
			if err != nil {
				t.Fatalf("%s: %v", f.name, err)
			}
			status := agent.RankStatus{Rank: number, Node: number / 2, Started: start, Ended: start.Add(time.Hour + time.Duration(i)*time.Second)}
			if status.Exit.Code, err = strconv.Atoi(fields[1]); err != nil {
				status.Exit = agent.Exit{Code: -1, Signal: fields[1]}
			}
			status.Exit.OutOfMemory = strings.HasSuffix(header, " | killed for memory")
			status.Stopped = strings.HasSuffix(header, " | stopped")
			path := filepath.Join(t.TempDir(), "rank.log")
			if err := os.WriteFile(path, []byte(expand(log, blocks)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			status.Tail, status.Python = rank.LastWords(path, status.Ended)
			f.ranks = append(f.ranks, status)
		}
		all = append(all, f)
	}
	return all
}

// verdict returns what a training whose ranks end so fails with, and what is wrong with it, "" if nothing is.
func (f failure) verdict() (text, problem string) {
	statuses := []agent.JobStatus{{Node: 0}, {Node: 1}}
	for i := range statuses {
		statuses[i].Spec = agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: len(f.ranks) / 2}
	}
	for _, r := range f.ranks {
		statuses[r.Node].Ranks = append(statuses[r.Node].Ranks, r)
	}
	found, ok := cause.Find(statuses)
	if !ok {
		return "", "no rank failed"
	}
	err := found.Err(cause.Job{Run: "run", Namespace: "team"})
	named := found.Rank.Rank
	if found.Left != nil {
		named = found.Left.Rank
	}
	switch {
	case f.culprit != "any" && strconv.Itoa(named) != f.culprit:
		problem = "want rank " + f.culprit
	case fail.ReasonOf(err) != f.reason:
		problem = fmt.Sprintf("got %s, want %s", fail.ReasonOf(err), f.reason)
	case !strings.Contains(err.Error()+"; next: "+fail.NextOf(err), f.want):
		problem = fmt.Sprintf("want %q", f.want)
	}
	return err.Error(), problem
}

// TestLogs judges logs as NCCL, CUDA, torch's C++ side and drawn tracebacks leave them.
func TestLogs(t *testing.T) {
	var wrong strings.Builder
	right, all := 0, failures(t)
	for _, f := range all {
		verdict, problem := f.verdict()
		if problem == "" {
			right++
		} else {
			fmt.Fprintf(&wrong, "- %s: %s; %s. %s\n", f.name, verdict, problem, f.wrong)
		}
		if (problem == "") != (f.wrong == "") {
			t.Errorf("%s: %s\n%s", f.name, verdict, problem)
		}
	}
	text := fmt.Sprintf("%d of %d are right.\n", right, len(all))
	if wrong.Len() > 0 {
		text += "\nThe wrong ones:\n\n" + wrong.String()
	}
	fmt.Println(text)
	const begin = "<!-- logs: written by go test ./test/culprits -update -->\n"
	if golden.Section(t, page, begin, text) {
		return
	}
	if content, err := os.ReadFile(page); err != nil || !strings.Contains(string(content), begin+text) {
		t.Errorf("%s has another score (%v); the flag -update writes it", page, err)
	}
}
