// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// printedFile, in the folder of a local run, next to its record and its receipt, is what mlenv run printed.
const printedFile = "output.log"

// localOf reads a local run. It writes the receipt of one whose mlenv was killed.
func localOf(of local.Run) (entry, error) {
	r := entry{name: of.Name, here: &of, hidden: true}
	inProgress, memory := of.Running(), receipt.Dir(of.Dir())
	m, err := memory.Recall(of.Name)
	if err != nil {
		return r, err
	}
	if m.RunUID == "" { // it was killed in its first moment
		m.RunUID, m.Environment = of.Name, of.Name
	}
	if m.Receipt == nil && !inProgress {
		killed := onWorkspace(abandoned(m, of), of.Folder)
		killed.Teardown = "all processes of the run ended with mlenv"
		_ = memory.Write(killed) // the next reader tries again
		m.Receipt = &killed
	}
	r.recall(m)
	return r, nil
}

// abandoned returns the receipt of a run whose mlenv ended before it wrote one. What its steps or its nodes have noted counts more than
// that.
func abandoned(m receipt.Memory, of local.Run) receipt.Receipt {
	at := of.LastWrite().UTC()
	ended, failure := of.NodesEnded()
	switch p := m.PartOf(trainTask); {
	case p != nil && (p.Status == run.Succeeded || ended && failure == ""):
		return m.Account(receipt.Standing{Verdict: receipt.Succeeded}, at)
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
func localRuns() (all []entry, err error) {
	found, err := local.All()
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

func newestFirst(a, b entry) int {
	return cmp.Or(b.started().Compare(a.started()), cmp.Compare(a.name, b.name))
}

// LocalNames returns the names of the local runs, for completion, which cannot report an error.
func LocalNames() []string {
	all, _ := local.All()
	return humanize.Each(all, func(r local.Run) string { return r.Name })
}

// onRun returns the RunE of a command about the run that its first argument names, or else the newest one. do gets the other
// arguments. A name means a local run if there is one, unless a flag chooses a cluster or a namespace. Without a cluster, or
// if it does not answer, the newest run is a local one. For a local run the clients are empty.
func onRun(flags *kube.Flags, do func(cmd *cobra.Command, clients *kube.Clients, r entry, others []string) error) func(
	*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		others := args[min(1, len(args)):]
		if of, ok := envflags.Local(*flags, args); ok {
			r, err := localOf(of)
			if err != nil {
				return err
			}
			return do(cmd, &kube.Clients{}, r, others)
		}
		var here []entry
		if len(args) == 0 && *flags == (kube.Flags{}) {
			here, _ = localRuns()
		}
		clients, err := flags.Connect()
		var r entry
		if err == nil {
			r, err = chosen(cmd.Context(), clients, args, here)
		}
		if len(here) > 0 && noCluster(clients, err) {
			if clients != nil {
				onlyHere(cmd, err)
			}
			r, err = here[0], nil
		}
		if err != nil {
			return err
		}
		if r.here != nil {
			clients = &kube.Clients{}
		}
		return do(cmd, clients, r, others)
	}
}

// noCluster reports whether err is that there is no cluster, in which case clients is nil, or that it does not answer.
func noCluster(clients *kube.Clients, err error) bool {
	return err != nil && (clients == nil || fail.ReasonOf(err) == fail.APIServerUnreachable)
}

// onlyHere tells a user that the runs of a cluster are not considered.
func onlyHere(cmd *cobra.Command, err error) {
	say(cmd.ErrOrStderr(), "Only the runs of this machine are considered: %v\n", err)
}

// in returns the flag that chooses the namespace of the run in a command, "" for a local run.
func (r entry) in(namespace string) string {
	if r.here != nil {
		return ""
	}
	return " -n " + namespace
}

// givenTo returns the params of a local run.
func givenTo(of local.Run) (values map[string][]string, err error) {
	const longest = 4 << 20 // bytes
	values = map[string][]string{}
	if err := claimfile.ReadJSON(filepath.Join(of.Dir(), agent.GivenFile), longest, &values); err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading the params of local run %s: %w", of.Name, err)
	}
	return values, nil
}

// withEarlierLocal adds the params of the local run that --like or --resume-from names.
func (o *runOptions) withEarlierLocal() error {
	name := cmp.Or(o.resumeFrom, o.like)
	if name == "" {
		return nil
	}
	of, ok := local.Find(name)
	if !ok {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "looking for local run %s: this machine has none of that name", name),
			"mlenv runs --local")
	}
	earlier, err := localOf(of)
	if err != nil {
		return err
	}
	values, err := givenTo(of)
	if err != nil {
		return err
	}
	maps.Copy(values, o.values)
	if o.resumeFrom != "" {
		earlier.resume(values, o.values)
	}
	if isFolder(values) {
		delete(values, "revision") // the folder is trained as it is now
	}
	o.values = values
	return nil
}
