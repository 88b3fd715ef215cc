// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// onCluster is the provider of runs that Tekton runs.
type onCluster struct{ clients *kube.Clients }

// namespace returns the run's own one also in a list of all namespaces.
func (c onCluster) namespace(r runInfo) (name string, local bool) {
	switch {
	case r.run != nil:
		return r.run.Namespace, false
	case r.receipt != nil && r.receipt.Namespace != "":
		return r.receipt.Namespace, false
	}
	return c.clients.Namespace, false
}

func (onCluster) workspace() string { return agent.Workspace }

// inProgress takes a PipelineRun that the user may not read for one that has not ended before its receipt says so.
func (onCluster) inProgress(r runInfo) bool {
	if r.run != nil {
		return !r.run.IsDone()
	}
	return r.forbidden && r.unfinished
}

func (onCluster) givenParams(r runInfo) (map[string][]string, error) {
	if r.isTraining() {
		return nil, fail.Becausef(fail.InvalidInput, "reading the params of run %s: it has none, because mlenv train started it", r.name)
	}
	if r.run == nil {
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "reading the params of run %s: its PipelineRun was deleted, only the receipt "+
			"is left", r.name),
			"mlenv receipt %s (has the script, the commit and the image; give the params again)", r.name)
	}
	return launch.Values(r.run), nil
}

func (c onCluster) nodes(ctx context.Context, r runInfo) (nodes.Set, error) {
	return env.Of(c.clients, r.environment()).Nodes(ctx, "")
}

// claims returns those that the run's receipt has or the training noted, or else those that exist now.
func (c onCluster) claims(ctx context.Context, r runInfo) (all []fetch.Claim, err error) {
	var names []string
	if record := r.record(); record != nil {
		names = record.Claims
	} else if names, err = env.Of(c.clients, r.environment()).WorkspaceClaims(ctx); err != nil {
		return nil, fmt.Errorf("run %s: %w", r.name, err)
	}
	for _, name := range names {
		all = append(all, fetch.Claim{Name: name, For: r.name})
	}
	return all, nil
}

// remove deletes the receipt; Kubernetes deletes the rest.
func (c onCluster) remove(ctx context.Context, r runInfo) (what string, err error) {
	return "The receipt of " + r.displayName(), receipt.Delete(ctx, c.clients.Kube, *r.receipt)
}

func (onCluster) writer(r runInfo) string {
	if r.isTraining() {
		return "mlenv train writes it at the end"
	}
	if r.run == nil && !r.forbidden || r.run != nil && (r.run.IsDone() || r.run.IsCancelled()) {
		return "no teardown follows, so the reaper writes it within two minutes"
	}
	return "teardown writes it"
}

func (onCluster) stop(r runInfo) string {
	if r.isTraining() {
		return "Ctrl-C in the terminal of its mlenv train, or mlenv down " + r.environment() + r.namespaceFlag()
	}
	return "mlenv cancel " + r.name + r.namespaceFlag()
}

// resume repeats the folder that the run trained.
func (onCluster) resume(r runInfo) string {
	if r.isTraining() {
		return "mlenv train SCRIPT " + agent.ResumeVariable + "=" + r.series() + r.namespaceFlag()
	}
	folder := ""
	if r.run != nil && git.IsFolder(r.param("repo-url")) {
		folder = ". "
	}
	return "mlenv run " + folder + "--resume-from " + r.name + r.namespaceFlag()
}
