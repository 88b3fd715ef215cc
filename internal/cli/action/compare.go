// SPDX-License-Identifier: Apache-2.0

package action

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

const (
	// branchAnnotation is the branch whose workflow started the run. A pull request's is NUMBER/merge: the name of its own branch is
	// chosen by its author, who may have a fork.
	branchAnnotation = project.LabelPrefix + "branch"
	// mostReceipts is how many receipts of a branch are read at most.
	mostReceipts = 30
)

// compare compares a run that has ended with a base, a branch or a run. That it cannot be compared fails nothing.
func (a *action) compare(ctx context.Context, base string, now receipt.Receipt) *trend.BaseComparison {
	if base == "" {
		return nil
	}
	compared := trend.BaseComparison{Base: base, Verdict: trend.Unknown, Why: "the run did not succeed"}
	if now.Verdict == receipt.Succeeded {
		runs, one, err := a.runsOf(ctx, base)
		if err != nil {
			a.gh.Warningf("The run was not compared with %s: %v", base, err)
			compared.Why = "its receipts could not be read"
		} else {
			compared = trend.Compare(now, base, runs, one, trend.DefaultTolerance())
		}
	}
	a.output("compared-with", compared.Run)
	a.output("comparison-verdict", string(compared.Verdict))
	if content, err := json.Marshal(compared); err == nil {
		a.output("comparison", string(content))
	}
	return &compared
}

// runsOf returns the receipts of the run of that name, or else of the newest runs of the branch whose PipelineRuns exist, the newest first.
// one is true for a run.
func (a *action) runsOf(ctx context.Context, base string) (runs []receipt.Receipt, one bool, err error) {
	if len(validation.IsDNS1123Subdomain(base)) == 0 {
		r, err := receipt.Read(ctx, a.clients.Kube, a.clients.Namespace, base)
		if err == nil {
			return []receipt.Receipt{r}, true, nil
		} else if !apierrors.IsNotFound(err) {
			return nil, false, err
		}
	}
	ofPipeline := metav1.ListOptions{LabelSelector: "tekton.dev/pipeline=" + launch.Pipeline}
	list, err := a.clients.Tekton.TektonV1().PipelineRuns(a.clients.Namespace).List(ctx, ofPipeline)
	if err != nil {
		return nil, false, kube.Problem(fmt.Errorf("listing pipelineruns in %s: %w", a.clients.Namespace, err))
	}
	of := slices.DeleteFunc(list.Items, func(r tekton.PipelineRun) bool { return !ofBranch(r, base) || !r.IsDone() })
	slices.SortStableFunc(of, func(x, y tekton.PipelineRun) int {
		return cmp.Or(y.CreationTimestamp.Compare(x.CreationTimestamp.Time), cmp.Compare(y.Name, x.Name))
	})
	for _, run := range of[:min(len(of), mostReceipts)] {
		r, err := receipt.Read(ctx, a.clients.Kube, a.clients.Namespace, run.Name)
		if apierrors.IsNotFound(err) {
			continue // it was pruned
		} else if err != nil {
			return nil, false, err
		}
		runs = append(runs, r)
	}
	return runs, false, nil
}

// ofBranch reports whether a workflow of the branch started the run, or the run trained the branch by name.
func ofBranch(run tekton.PipelineRun, branch string) bool {
	return run.Annotations[branchAnnotation] == branch ||
		slices.ContainsFunc(run.Spec.Params, func(p tekton.Param) bool { return p.Name == "revision" && p.Value.StringVal == branch })
}

// comparisonFacts returns rows of the summary.
func comparisonFacts(b trend.BaseComparison) (rows [][2]string) {
	text := string(b.Verdict)
	if b.Why != "" {
		text += ": " + b.Why
	}
	if b.Run != "" {
		text = "run " + b.Run + ": " + text
	}
	rows = append(rows, [2]string{"compared with " + b.Base, text})
	for _, m := range b.Measures {
		change := ""
		switch {
		case m.Value == "-" || m.Runs == 0:
		case m.Worse >= 0:
			change = fmt.Sprintf(", %s worse than the median of %d", m.Worse, m.Runs)
		default:
			change = fmt.Sprintf(", %s better than the median of %d", -m.Worse, m.Runs)
		}
		if m.Regressed {
			change += fmt.Sprintf("; want at most %s worse", m.Tolerance)
		}
		rows = append(rows, [2]string{string(m.Measure), fmt.Sprintf("%s, there %s%s", m.Value, m.Base, change)})
	}
	return rows
}
