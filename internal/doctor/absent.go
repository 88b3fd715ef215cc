// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// absent explains a missing environment: which environments exist, and how its last run ended.
func (e *examination) absent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	e.unreadable()
	if err := kube.NoNamespace(ctx, e.clients.Kube, e.env.Namespace); err != nil {
		e.found(fail.EnvironmentMissing, "environment "+e.env.Name, err.Error(), fail.NextOf(err))
		return
	}
	evidence := []string{fmt.Sprintf("environment %s does not exist in namespace %s", e.env.Name, e.env.Namespace)}
	next := fmt.Sprintf("mlenv up %s -n %s", e.env.Name, e.env.Namespace)
	if e.lease != nil {
		evidence = append(evidence, "its lease exists, so the environment is being created or deleted: "+e.lease.Describe())
		next = fmt.Sprintf("oc get events -n %s --sort-by=.lastTimestamp | tail -20", e.env.Namespace)
	}
	evidence = append(evidence, e.others(ctx))
	switch last, ok, err := receipt.Latest(ctx, e.clients.Kube, e.env.Namespace, e.env.Name); {
	case err != nil:
		e.found(NotReadable, "receipts", err.Error(), fail.NextOf(err))
	case ok:
		how := string(last.Verdict)
		if last.Reason != "" {
			how += fmt.Sprintf(" (%s): %s", last.Reason, last.Message)
		}
		evidence = append(evidence, fmt.Sprintf("its last run, %s, ended at %s: %s", last.Run, last.Ended.UTC().Format("2006-01-02 15:04 UTC"),
			how))
		if last.Reason != "" {
			next = fmt.Sprintf("mlenv receipt %s -n %s (docs/reference/reasons.md explains %s)", last.Run, e.env.Namespace, last.Reason)
		}
	}
	e.found(fail.EnvironmentMissing, "environment "+e.env.Name, strings.Join(evidence, "\n"), next)
}

// others lists the environments of the namespace.
func (e *examination) others(ctx context.Context) string {
	sets, err := e.clients.Kube.AppsV1().StatefulSets(e.env.Namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.EnvironmentLabel})
	if err != nil {
		return "the environments of the namespace are unknown: " + err.Error()
	}
	var names []string
	for _, set := range sets.Items {
		want := diagnose.Snapshot{StatefulSet: &set}.Replicas()
		names = append(names, fmt.Sprintf("%s (%d of %d nodes ready)", set.Labels[objects.EnvironmentLabel], set.Status.ReadyReplicas, want))
	}
	slices.Sort(names)
	return "environments in it: " + cmp.Or(strings.Join(names, ", "), "none")
}
