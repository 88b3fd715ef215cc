// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// silentError is an error of type NodeLost for a node that does not answer although its pod is there. A pod that was deleted, evicted or
// preempted is no fault of its node.
type silentError struct {
	node int
	error
}

func (e silentError) Unwrap() error { return e.error }

// attempt is Attempt. It notes the fault of a Kubernetes node that ended the attempt.
func (t *Training) attempt(ctx context.Context) (Result, error) {
	result, err := t.Attempt(ctx)
	if err != nil && ctx.Err() == nil {
		t.noteFaults(ctx, err)
	}
	return result, err
}

func (t *Training) noteFaults(ctx context.Context, err error) {
	if silent := (silentError{}); errors.As(err, &silent) {
		t.noteFault(ctx, silent.node, receipt.LostFault, silent.Error())
	}
	if failed := (cause.Error{}); errors.As(err, &failed) && failed.Hardware() {
		t.noteFault(ctx, failed.Rank.Node, receipt.GPUFault, failed.Symptom())
	}
	if hang := (hangError{}); errors.As(err, &hang) {
		if node, alone := t.nodeOf(hang.ranks); alone {
			t.noteFault(ctx, node, receipt.HangFault, hang.culprit)
		}
	}
}

// nodeOf returns the node that has all of the ranks; alone is false if there is none, and if the training has no other node.
func (t *Training) nodeOf(ranks []int) (node int, alone bool) {
	if len(ranks) == 0 || len(t.Nodes) < 2 {
		return 0, false
	}
	for node := range t.Nodes {
		own := t.Spec.Ranks(node)
		if !slices.ContainsFunc(ranks, func(rank int) bool { return !slices.Contains(own, rank) }) {
			return node, true
		}
	}
	return 0, false
}

// noteFault notes what went wrong on the Kubernetes node of a node of the environment.
func (t *Training) noteFault(ctx context.Context, node int, kind receipt.FaultKind, message string) {
	fault := receipt.Fault{KubernetesNode: t.hosts[node], Kind: kind, At: t.Clients.Now(), Message: message}
	t.kept.Learn(ctx, func(p *receipt.Part) { p.AddFault(fault) })
}
