// SPDX-License-Identifier: Apache-2.0

package envflags

import (
	"context"
	"slices"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// resolve replaces a run's name by its environment's name, for a command that takes runs. It changes nothing if an environment has
// the name, or if the cluster cannot be asked: the command itself reports that. Errors: InvalidInput for a run in place of an
// environment, EnvironmentMissing for a run that has none yet or any more.
func (f *Flags) resolve(ctx context.Context, clients *kube.Clients) error {
	name := f.flags.Lookup(NameFlag).Value.String()
	if clients.Tekton == nil || !missing(ctx, clients, name) {
		return nil
	}
	run, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && isTraining(run):
		return f.useRun(ctx, clients, run)
	case !apierrors.IsNotFound(err):
		return nil // the command itself reports what it may not read
	}
	switch left, err := receipt.ReadJournal(ctx, clients.Kube, clients.Namespace, name); {
	case err != nil || left.Receipt == nil && !left.Kept:
	case !f.Runs:
		return f.wantsEnvironment(clients, name, left.Environment)
	case left.Receipt == nil:
		return f.flags.Set(NameFlag, left.Environment)
	default:
		return runOver(clients, name, string(left.Receipt.Verdict))
	}
	if run := f.creator(ctx, clients, name); run != nil {
		return notYet(clients, run.Name, name)
	}
	return f.notLocal(nil)
}

// missing reports whether the environment is known not to exist.
func missing(ctx context.Context, clients *kube.Clients, name string) bool {
	_, err := clients.Kube.CoordinationV1().Leases(clients.Namespace).Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func isTraining(run *v1.PipelineRun) bool {
	return run.Spec.PipelineRef != nil && run.Spec.PipelineRef.Name == launch.Pipeline
}

func (f *Flags) useRun(ctx context.Context, clients *kube.Clients, run *v1.PipelineRun) error {
	environment := launch.EnvironmentOf(run)
	if !f.Runs {
		return f.wantsEnvironment(clients, run.Name, environment)
	}
	held, err := clients.Kube.CoordinationV1().Leases(clients.Namespace).Get(ctx, environment, metav1.GetOptions{})
	switch {
	case err == nil && lease.HolderOf(held).ID == string(run.UID):
		return f.flags.Set(NameFlag, environment)
	case err != nil && !apierrors.IsNotFound(err):
		return f.flags.Set(NameFlag, environment) // the command itself reports what it may not read
	case run.IsDone():
		return runOver(clients, run.Name, "over")
	}
	return notYet(clients, run.Name, environment)
}

// creator returns the run in progress that will create the environment, nil for none or for a command that works in environments of users.
func (f *Flags) creator(ctx context.Context, clients *kube.Clients, environment string) *v1.PipelineRun {
	if !f.Runs {
		return nil
	}
	runs, _ := launch.Unfinished(ctx, clients)
	i := slices.IndexFunc(runs, func(run v1.PipelineRun) bool { return launch.EnvironmentOf(&run) == environment })
	if i < 0 {
		return nil
	}
	return &runs[i]
}

func (f *Flags) wantsEnvironment(clients *kube.Clients, name, environment string) error {
	err := fail.Becausef(fail.InvalidInput, "looking for environment %s/%s: it is a run, in environment %s: want an environment",
		clients.Namespace, name, environment)
	return command.Usage(fail.Advise(err, "--%s=%s", NameFlag, environment))
}

func runOver(clients *kube.Clients, name, state string) error {
	err := fail.Becausef(fail.EnvironmentMissing, "looking for the environment of run %s/%s: the run is %s, and its environment is released",
		clients.Namespace, name, state)
	return fail.Advise(err, "mlenv receipt %s -n %s", name, clients.Namespace)
}

func notYet(clients *kube.Clients, name, environment string) error {
	err := fail.Becausef(fail.EnvironmentMissing, "looking for environment %s/%s: run %s is in progress and has not created it yet",
		clients.Namespace, environment, name)
	return fail.Advise(err, "mlenv status %s -n %s", name, clients.Namespace)
}
