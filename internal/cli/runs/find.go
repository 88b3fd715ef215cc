// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// chosenRun returns the named run, or else the first one, which may be one of this machine.
func chosenRun(ctx context.Context, clients *kube.Clients, args []string, here []runInfo) (runInfo, error) {
	if len(args) == 0 {
		all, err := listRuns(ctx, clients)
		if err != nil {
			return runInfo{}, err
		}
		if all = append(all, here...); len(all) == 0 {
			next := fmt.Sprintf("mlenv run . SCRIPT -n %s   # in the folder of your script", clients.Namespace)
			return runInfo{}, missing(ctx, clients, next, "looking for the newest run in %s: there is none", clients.Namespace)
		}
		r := runToShow(all)
		if _, local := r.at.namespace(r); local {
			return r, nil
		}
		args = []string{r.name}
	}
	return findRun(ctx, clients, args[0])
}

// runToShow returns a run in progress, of the cluster rather than of this machine, or else the newest run.
func runToShow(all []runInfo) runInfo {
	order := func(r runInfo) int {
		_, local := r.at.namespace(r)
		switch {
		case r.standing().Verdict != "":
			return 2
		case local:
			return 1
		}
		return 0
	}
	return slices.MinFunc(all, func(a, b runInfo) int { return cmp.Or(cmp.Compare(order(a), order(b)), newestFirst(a, b)) })
}

// findRun looks for the PipelineRun and the receipt. If both are missing, the reason is InvalidInput.
func findRun(ctx context.Context, clients *kube.Clients, name string) (runInfo, error) {
	r := runInfo{name: name, at: onCluster{clients}}
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return r, command.Usage(fail.Advise(fail.Becausef(fail.InvalidInput, "run %q: want the name of a run, such as train-multi-node-x7k2p",
			name), "mlenv runs -n %s", clients.Namespace))
	}
	found, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		r.run = found
		if err = r.readTasks(ctx, clients); err != nil {
			return r, err
		}
	case apierrors.IsForbidden(err):
		r.forbidden = true
	case !apierrors.IsNotFound(err):
		return r, kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", clients.Namespace, name, err))
	}
	notAllowed := err
	m, err := receipt.ReadJournal(ctx, clients.Kube, clients.Namespace, name)
	switch {
	case err == nil && (r.run == nil || m.RunUID == string(r.run.UID)):
		r.setJournal(m)
	case err != nil && r.run != nil && fail.ReasonOf(err) == fail.InvalidInput:
		// The PipelineRun has what is needed.
	case err != nil && !apierrors.IsNotFound(err):
		return r, kube.Problem(err)
	}
	if r.forbidden && r.receipt == nil {
		return r, kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", clients.Namespace, name, notAllowed))
	}
	if r.run == nil && r.receipt == nil {
		return r, missing(ctx, clients, "mlenv runs -n "+clients.Namespace, "looking for run %s/%s: found neither a PipelineRun nor a receipt "+
			"of that name", clients.Namespace, name)
	}
	return r, nil
}

// readTasks reads the tasks as Tekton shows them, unless the user may not.
func (r *runInfo) readTasks(ctx context.Context, clients *kube.Clients) (err error) {
	r.tasks, err = run.TaskRuns(ctx, clients.Tekton, r.run.Namespace, r.name, r.run.UID)
	if fail.ReasonOf(err) == fail.PermissionDenied {
		return nil
	}
	return err
}

// missing returns the error of a run that does not exist, perhaps because its namespace does not.
func missing(ctx context.Context, clients *kube.Clients, next, format string, args ...any) error {
	if err := kube.NoNamespace(ctx, clients.Kube, clients.Namespace); err != nil {
		return command.Usage(err)
	}
	return command.Usage(fail.Advise(fail.Becausef(fail.InvalidInput, format, args...), "%s", next))
}

// pipelineSelector selects all PipelineRuns of the pipeline, however they were started.
const pipelineSelector = "tekton.dev/pipeline=" + launch.Pipeline

// namespaceOf names the clients' namespace.
func namespaceOf(clients *kube.Clients) string { return cmp.Or(clients.Namespace, "all namespaces") }

// listRuns returns all runs of the namespace without their tasks, the newest first, also deleted ones that
// left a receipt. It skips receipts that are not valid.
func listRuns(ctx context.Context, clients *kube.Clients) ([]runInfo, error) {
	found, notListed := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: pipelineSelector})
	hidden := apierrors.IsForbidden(notListed)
	if notListed != nil && !hidden {
		return nil, kube.Problem(fmt.Errorf("listing pipelineruns in %s: %w", namespaceOf(clients), notListed))
	}
	left, err := receipt.ReadJournals(ctx, clients.Kube, clients.Namespace)
	if err != nil && len(left) == 0 && fail.ReasonOf(err) != fail.InvalidInput {
		return nil, err
	}
	journals := map[string]receipt.Journal{}
	for _, each := range left {
		journals[each.Namespace+"/"+each.Run] = each
	}
	var all []runInfo
	var existing []v1.PipelineRun
	if !hidden {
		existing = found.Items
	}
	for i := range existing {
		r := runInfo{name: existing[i].Name, at: onCluster{clients}, run: &existing[i]}
		id := r.run.Namespace + "/" + r.name
		if m, ok := journals[id]; ok && m.RunUID == r.uid() {
			r.setJournal(m)
		}
		delete(journals, id)
		all = append(all, r)
	}
	for _, m := range journals {
		// Steps that a person ran by hand leave a receipt without a UID.
		if m.RunUID != "" {
			r := runInfo{name: m.Run, at: onCluster{clients}, forbidden: hidden}
			r.setJournal(m)
			all = append(all, r)
		}
	}
	if hidden && len(all) == 0 {
		return nil, kube.Problem(fmt.Errorf("listing pipelineruns in %s: %w", namespaceOf(clients), notListed))
	}
	slices.SortFunc(all, newestFirst)
	return all, nil
}

// Names returns the names of all runs for completion, which cannot report an error.
func Names(ctx context.Context, clients *kube.Clients) []string {
	all, _ := listRuns(ctx, clients)
	return humanize.Each(all, func(r runInfo) string { return r.name })
}

// InProgress returns the names of the runs that have not ended, for completion.
func InProgress(ctx context.Context, clients *kube.Clients) []string {
	names, _ := runsInProgress(ctx, clients)
	return names
}

func runsInProgress(ctx context.Context, clients *kube.Clients) ([]string, error) {
	all, err := listRuns(ctx, clients)
	all = slices.DeleteFunc(all, func(r runInfo) bool { return r.run == nil || !r.at.inProgress(r) })
	return humanize.Each(all, func(r runInfo) string { return r.name }), err
}

func newestFirst(a, b runInfo) int {
	return cmp.Or(b.started().Compare(a.started()), cmp.Compare(a.name, b.name))
}
