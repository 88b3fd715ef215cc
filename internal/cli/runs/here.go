// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// printedFile, in the folder of a local run, next to its record and its receipt, is what mlenv run printed.
const printedFile = "output.log"

// localOf reads a local run. It writes the receipt of one whose mlenv was killed, and deletes its temporary files.
func localOf(of local.Run) (runInfo, error) {
	r := runInfo{name: of.Name, at: onMachine{of}, forbidden: true}
	inProgress, journal := of.Running(), receipt.Dir(of.Dir())
	m, err := journal.Read(of.Name)
	if err != nil {
		return r, err
	}
	if m.RunUID == "" { // it was killed in its first moment
		m.RunUID, m.Environment = of.Name, of.Name
	}
	if m.Receipt == nil && !inProgress {
		killed := onWorkspace(abandoned(m, of), of.Folder)
		killed.Teardown = "all processes of the run ended with mlenv; its temporary files were deleted later"
		if err := of.CleanUp(); err != nil { // the next reader tries again, as it does without the receipt
			killed.Teardown = fmt.Sprintf("all processes of the run ended with mlenv; %v", err)
		} else {
			_ = journal.Write(killed)
		}
		m.Receipt = &killed
	}
	r.setJournal(m)
	return r, nil
}

// abandoned returns the receipt of a run whose mlenv ended before it wrote one. What its steps or its nodes have noted counts more than
// that.
func abandoned(m receipt.Journal, of local.Run) receipt.Receipt {
	at := of.LastWrite().UTC()
	ended, failure := of.NodesEnded()
	switch p := m.EntryOf(trainTask); {
	case p != nil && (p.Status == run.Succeeded || ended && failure == ""):
		return m.ToReceipt(receipt.Standing{Verdict: receipt.Succeeded}, at)
	case ended && failure != "":
		return m.End(fail.RankFailed, failure+"; mlenv was killed before it looked for the cause", at)
	}
	return m.End(fail.NodeLost, "mlenv was killed, and the nodes of the run with it", at)
}

// onWorkspace returns the receipt with the paths of this machine. The steps note paths in a pod.
func onWorkspace(r receipt.Receipt, folder string) receipt.Receipt {
	here := func(path string) string {
		if rest, ok := strings.CutPrefix(path, agent.Workspace+"/"); ok {
			return filepath.Join(folder, rest)
		}
		return path
	}
	r.Checkpoint = here(r.Checkpoint)
	if r.Record != nil {
		r.Record.Folder, r.Record.Claims = here(r.Record.Folder), []string{}
	}
	return r
}

// localRuns returns all local runs, the newest first. It skips what cannot be read, unless nothing can.
func localRuns() (all []runInfo, err error) {
	found, err := local.ListRuns()
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, of := range found {
		r, err := localOf(of)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		err = errors.Join(problems...)
	}
	slices.SortFunc(all, newestFirst)
	return all, err
}

// onMachine is the provider of runs on this machine.
type onMachine struct{ run local.Run }

func (onMachine) namespace(runInfo) (name string, local bool) { return "", true }

func (h onMachine) workspace() string { return h.run.Folder }

func (h onMachine) inProgress(runInfo) bool { return h.run.Running() }

func (h onMachine) givenParams(runInfo) (values map[string][]string, err error) {
	const longest = 4 << 20 // bytes
	values = map[string][]string{}
	if err := claimfile.ReadJSON(filepath.Join(h.run.Dir(), agent.GivenFile), longest, &values); err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading the params of local run %s: %w", h.run.Name, err)
	}
	return values, nil
}

func (h onMachine) nodes(context.Context, runInfo) (nodes.Set, error) { return h.run.Connect() }

// claims returns the folder in place of a claim.
func (h onMachine) claims(context.Context, runInfo) ([]fetch.Claim, error) {
	return []fetch.Claim{{Name: h.run.Folder, For: h.run.Name, Local: true}}, nil
}

func (h onMachine) remove(context.Context, runInfo) (what string, err error) {
	return "Local run " + h.run.Name, h.run.Remove()
}

func (onMachine) writer(runInfo) string { return "mlenv run writes it at the end" }

func (h onMachine) stop(runInfo) string { return h.run.Stop() }

func (onMachine) resume(r runInfo) string { return "mlenv run --local --resume-from " + r.name }

// LocalNames returns the names of the local runs, for completion, which cannot report an error.
func LocalNames() []string {
	all, _ := local.ListRuns()
	return humanize.Each(all, func(r local.Run) string { return r.Name })
}
