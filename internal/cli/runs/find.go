package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

// ResumeVariable is set for the ranks of a run that resumes another: the name of the run in
// whose folder of checkpoints it goes on, the first one of a row.
const ResumeVariable = "MLENV_RESUME_FROM"

// known is what is left of a run: its PipelineRun, its receipt, or both.
type known struct {
	name string
	// run is nil where it was deleted, tasks are then unknown too.
	run   *v1.PipelineRun
	tasks []run.TaskRun
	// receipt is nil where there is none (yet).
	receipt *receipt.Receipt
}

// named connects to the cluster and finds a run there.
func named(ctx context.Context, flags kube.Flags, name string) (*kube.Clients, known, error) {
	clients, err := flags.Connect()
	if err != nil {
		return nil, known{}, err
	}
	k, err := find(ctx, clients, name)
	return clients, k, err
}

// find looks for both. A name of which there is neither is InvalidInput, with those that there are.
func find(ctx context.Context, clients *kube.Clients, name string) (known, error) {
	k := known{name: name}
	found, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		k.run = found
		if k.tasks, err = run.TaskRuns(ctx, clients.Tekton, clients.Namespace, name, found.UID); err != nil {
			return k, err
		}
	case !apierrors.IsNotFound(err):
		return k, kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", clients.Namespace, name, err))
	}
	left, err := receipt.Read(ctx, clients.Kube, clients.Namespace, name)
	switch {
	case err == nil && (k.run == nil || left.RunUID == string(k.run.UID)):
		k.receipt = &left
	case err != nil && !apierrors.IsNotFound(err):
		return k, kube.Problem(err)
	}
	if k.run == nil && k.receipt == nil {
		if err := kube.NoNamespace(ctx, clients.Kube, clients.Namespace); err != nil {
			return k, wrongUsage(err)
		}
		return k, wrongUsage(fail.Advise(fail.Becausef(fail.InvalidInput, "looking for run %s/%s: there is neither a PipelineRun nor a receipt of that name", clients.Namespace, name),
			"mlenv runs -n %s", clients.Namespace))
	}
	return k, nil
}

// uid is the id of the run's job too.
func (k known) uid() string {
	if k.run != nil {
		return string(k.run.UID)
	}
	return k.receipt.RunUID
}

// environment is the one that the run had.
func (k known) environment() string {
	if k.receipt != nil {
		return k.receipt.Environment
	}
	if k.run.Status.PipelineSpec != nil {
		return launch.Value(&v1.Pipeline{Spec: *k.run.Status.PipelineSpec}, launch.Values(k.run), "name")
	}
	return cmp.Or(strings.Join(launch.Values(k.run)["name"], ""), "ml-dev-env")
}

// values are what it was started with.
func (k known) values() (map[string][]string, error) {
	if k.run == nil {
		return nil, wrongUsage(fail.Advise(fail.Becausef(fail.InvalidInput, "reading the params of run %s: its PipelineRun is gone, only its receipt is left", k.name),
			"mlenv receipt %s (has the commit and the image; give the rest again)", k.name))
	}
	return launch.Values(k.run), nil
}

// resume makes values those of a run that goes on where k ended: with its very commit,
// unless another is given, and the variable that says where its checkpoints lie.
func (k known) resume(values, given map[string][]string) {
	if given["revision"] == nil && given["repo-url"] == nil {
		commit := ""
		for _, task := range k.tasks {
			commit = cmp.Or(commit, task.Results["commit"])
		}
		if commit == "" && k.receipt != nil {
			commit = k.receipt.Commit
		}
		if commit != "" {
			values["revision"] = []string{commit}
		}
	}
	root := k.name
	env := slices.Clone(values["env"])
	for i, entry := range env {
		if name, value, _ := strings.Cut(entry, "="); name == ResumeVariable {
			root = value
			env = slices.Delete(env, i, i+1)
			break
		}
	}
	values["env"] = append(env, ResumeVariable+"="+root)
}

// sentBefore refuses values whose folder was sent from somewhere: it has to be sent again.
func sentBefore(values map[string][]string, name string) error {
	if url := values["repo-url"]; len(url) == 1 && syncrepo.IsSentURL(url[0]) {
		return wrongUsage(fail.Advise(fail.Becausef(fail.InvalidInput, "starting a run like %s: that one was trained from a folder: want the folder again, or a repository", name),
			"mlenv run . --like %s", name))
	}
	return nil
}

// pipelineSelector finds the PipelineRuns of our pipeline, however they were started.
const pipelineSelector = "tekton.dev/pipeline=" + launch.Pipeline

// names of runs, the newest first, for completion.
func names(ctx context.Context, clients *kube.Clients) ([]string, error) {
	all, err := list(ctx, clients)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, k := range all {
		found = append(found, k.name)
	}
	return found, nil
}

// list are all runs of the namespace, the newest first, also those of which only the
// receipt is left. Their tasks are not read.
func list(ctx context.Context, clients *kube.Clients) ([]known, error) {
	found, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).List(ctx, metav1.ListOptions{LabelSelector: pipelineSelector})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing pipelineruns in %s: %w", clients.Namespace, err))
	}
	receipts, err := receipt.List(ctx, clients.Kube, clients.Namespace)
	if err != nil {
		return nil, err
	}
	var all []known
	for i := range found.Items {
		k := known{name: found.Items[i].Name, run: &found.Items[i]}
		if left, ok := receipts[k.name]; ok && left.RunUID == k.uid() {
			k.receipt = &left
		}
		delete(receipts, k.name)
		all = append(all, k)
	}
	for _, left := range receipts {
		// A receipt without a UID is of a person's own steps, not of a run.
		if left.RunUID != "" {
			all = append(all, known{name: left.Run, receipt: &left})
		}
	}
	slices.SortFunc(all, func(a, b known) int { return cmp.Or(b.started().Compare(a.started()), cmp.Compare(a.name, b.name)) })
	return all, nil
}

// complete offers the names of runs for a flag; arguments have completeRun.
func complete(cmd *cobra.Command, flag string, flags *kube.Flags) {
	// The only error is a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return offer(cmd, flags)
	})
}

// completeRun offers the names of runs for the first argument.
func completeRun(flags *kube.Flags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offer(cmd, flags)
	}
}

func offer(cmd *cobra.Command, flags *kube.Flags) ([]string, cobra.ShellCompDirective) {
	clients, err := flags.Connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found, err := names(cmd.Context(), clients)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
