// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// queue checks that Kueue has the queue, and would admit the environment as one group.
func (p *probe) queue(ctx context.Context) []Check {
	const name = "queue"
	queue := p.Request.Queue
	if queue == "" {
		return nil
	}
	blocked := func(next, format string, args ...any) []Check {
		return []Check{newCheck(name, Blocked, next, format, args...).because(fail.QueueUnavailable)}
	}
	if !p.groups[kueue.Group] {
		return blocked("ask an administrator to install Kueue, or leave the queue out",
			"%s: the cluster has no Kueue (API group %s)", queue, kueue.Group)
	}
	check, active := p.localQueue(ctx, name)
	if active {
		if refused := p.unmanaged(ctx); refused != "" {
			return blocked("ask an administrator to enable the framework statefulset, and pod before Kueue 0.15, "+
				"in Kueue's configuration (integrations.frameworks)", "%s: %s", queue, refused)
		}
	}
	return append([]Check{check}, p.queuePriority(ctx, name)...)
}

// localQueue is active even if it cannot be read.
func (p *probe) localQueue(ctx context.Context, name string) (check Check, active bool) {
	queue, list := p.Request.Queue, "oc get localqueues -n "+p.Request.Namespace
	found, err := kueue.Get(ctx, p.Clients.Objects, "localqueues", p.Request.Namespace, queue)
	switch {
	case apierrors.IsNotFound(err):
		return newCheck(name, Blocked, list, "namespace %s has no LocalQueue %s", p.Request.Namespace, queue).because(fail.QueueUnavailable),
			false
	case err != nil:
		return unread(name, "LocalQueue "+queue, err), true
	}
	conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Active" && c["status"] != "True" {
			return newCheck(name, Blocked, list, "LocalQueue %s is not active: %v", queue, c["message"]).because(fail.QueueUnavailable), false
		}
	}
	cluster, _, _ := unstructured.NestedString(found.Object, "spec", "clusterQueue")
	pending, _, _ := unstructured.NestedInt64(found.Object, "status", "pendingWorkloads")
	admitted, _, _ := unstructured.NestedInt64(found.Object, "status", "admittedWorkloads")
	return newCheck(name, OK, "", "LocalQueue %s of ClusterQueue %s: %s admitted, %d waiting", queue, cluster,
		humanize.Count(int(admitted), "workload"), pending), true
}

// queuePriority checks that the WorkloadPriorityClass exists. Without it Kueue never admits the pods, and gives no reason.
func (p *probe) queuePriority(ctx context.Context, name string) []Check {
	priority := p.Request.QueuePriority
	if priority == "" {
		return nil
	}
	found, err := kueue.Get(ctx, p.Clients.Objects, "workloadpriorityclasses", "", priority)
	switch {
	case apierrors.IsNotFound(err):
		check := newCheck(name, Blocked, "oc get workloadpriorityclasses", "the cluster has no WorkloadPriorityClass %s", priority)
		return []Check{check.because(fail.QueueUnavailable)}
	case err != nil:
		return []Check{unread(name, "WorkloadPriorityClass "+priority, err)}
	}
	value, _, _ := unstructured.NestedInt64(found.Object, "value")
	return []Check{newCheck(name, OK, "", "WorkloadPriorityClass %s: priority %d", priority, value)}
}

// unmanaged returns why Kueue would not hold the environment's pods, "" if it would. A dry run shows it: without the framework Kueue
// ignores the label, and the pods would bypass the queue.
func (p *probe) unmanaged(ctx context.Context) string {
	set := p.objects[agent.TCP].StatefulSet.DeepCopy()
	set.OwnerReferences, set.Name = nil, set.Name+"-preflight"
	answer, err := p.Clients.Kube.AppsV1().StatefulSets(p.Request.Namespace).Create(ctx, set, dryRun)
	switch err = kube.Problem(err); {
	case err != nil && strings.Contains(err.Error(), "kueue"):
		return "Kueue refuses the environment: " + oneLine(err.Error())
	case err != nil:
		return "" // admission and permissions report it
	case !kueue.Manages(answer.Spec.Template):
		return "Kueue does not manage StatefulSets in this namespace, so the pods would start without it"
	}
	return ""
}
