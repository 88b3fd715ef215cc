// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// pendingPod is a pod that waits for a node, with the scheduler's message.
type pendingPod struct {
	pod     *corev1.Pod
	message schedulerMessage
	since   time.Time
}

// waitsForNode reports whether a pod has no node and the scheduler has reported why.
func (e *explainer) waitsForNode(pod *corev1.Pod) (pendingPod, bool) {
	if pod.Spec.NodeName != "" || hasFinished(pod) {
		return pendingPod{}, false
	}
	u := pendingPod{pod: pod}
	text := ""
	if ev, ok := latest(e.podEvents(pod), "FailedScheduling"); ok {
		text, u.since = ev.text, ev.first
	}
	// The condition has the message of the last attempt; its event may be missing.
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		text, u.since = cmp.Or(c.Message, text), c.LastTransitionTime.Time
	}
	u.message = readSchedulerMessage(text)
	return u, text != ""
}

// scheduling has the findings about pods without a node. claims is true if unbound claims have findings already.
func (e *explainer) scheduling(claims bool) {
	for i := range e.Pods {
		pod := &e.Pods[i]
		if f, gated := e.explainGate(pod); gated {
			e.add(f)
			continue
		}
		u, ok := e.waitsForNode(pod)
		if !ok {
			continue
		}
		causes := e.byQueue(u)
		switch {
		case causes != nil:
		case e.Nodes == nil:
			causes = e.byWords(u)
		default:
			causes = e.byNodes(u)
		}
		volumes, aboutVolumes := e.byVolumes(u, claims)
		causes = append(causes, volumes...)
		if len(causes) == 0 && !aboutVolumes {
			f := fail.Finding{
				Reason: fail.NodesUnavailable, Seen: "no node fits: " + u.message.text,
				Next: fmt.Sprintf("oc describe pod %s -n %s", pod.Name, pod.Namespace),
			}
			recognize(pod, "scheduler", u.message.text, &f)
			causes = append(causes, f)
		}
		for _, f := range causes {
			f.Object, f.Since = "pod "+pod.Name, u.since
			e.add(f)
		}
	}
}

// explainGate explains a pod that a scheduling gate holds, as Kueue's.
func (e *explainer) explainGate(pod *corev1.Pod) (fail.Finding, bool) {
	c := condition(pod, corev1.PodScheduled)
	// The condition stays for a moment after the last gate is gone.
	if hasFinished(pod) || c == nil || c.Reason != corev1.PodReasonSchedulingGated || len(pod.Spec.SchedulingGates) == 0 {
		return fail.Finding{}, false
	}
	var gates []string
	for _, g := range pod.Spec.SchedulingGates {
		gates = append(gates, g.Name)
	}
	f := fail.Finding{
		Reason: fail.QuotaExceeded, Object: "pod " + pod.Name,
		Seen:  "its queue has not admitted it: scheduling gate " + firstNames(gates, 3),
		Next:  "oc get workloads.kueue.x-k8s.io -n " + pod.Namespace,
		Since: c.LastTransitionTime.Time,
	}
	if queue := e.queueOf(pod); queue != "" && kueue.Holds(&pod.Spec) {
		because := e.waiting(pod)
		f.Seen = "LocalQueue " + queue + " has not admitted it" + because.Seen
		f.Next, f.Final = cmp.Or(because.Next, f.Next), because.Final
	}
	return f, true
}

// byQueue explains a pod that its queue has assigned the Kubernetes node of another pod of the environment: Kueue fills the hosts of a
// topology with pods and ignores their anti-affinity.
func (e *explainer) byQueue(u pendingPod) []fail.Finding {
	host := u.pod.Spec.NodeSelector[corev1.LabelHostname]
	i := slices.IndexFunc(e.Pods, func(other corev1.Pod) bool {
		return host != "" && other.Name != u.pod.Name && other.Spec.NodeSelector[corev1.LabelHostname] == host
	})
	if i < 0 {
		return nil
	}
	return []fail.Finding{{
		Reason: fail.NodesUnavailable, Final: true,
		Seen: fmt.Sprintf("its queue assigned Kubernetes node %s both to it and to pod %s, but each needs one of its own: "+
			"Kueue ignores the anti-affinity of pods", host, e.Pods[i].Name),
		Next: fmt.Sprintf("request all GPUs of a Kubernetes node by gpus-per-node, or have the level %s removed from the queue's Topology",
			corev1.LabelHostname),
	}}
}

// queueOf returns the LocalQueue of a pod. A pod that Kueue has just seen may not have its name yet.
func (e *explainer) queueOf(pod *corev1.Pod) string {
	queue := pod.Labels[kueue.QueueLabel]
	if queue == "" && e.StatefulSet != nil {
		queue = e.StatefulSet.Labels[kueue.QueueLabel]
	}
	return queue
}

// waiting returns why Kueue does not admit a pod, and how many wait before it, as far as that is known, behind punctuation.
func (e *explainer) waiting(pod *corev1.Pod) (f fail.Finding) {
	if e.QueuePosition > 0 {
		f.Seen += fmt.Sprintf(": it is number %d in its ClusterQueue", e.QueuePosition)
	}
	workload := kueue.WorkloadOf(pod)
	for _, ev := range e.saidOf(workload) {
		// Kueue's events about an eviction are of type Normal, as are those that tell nothing. The reason of one that waits may be Pending,
		// or since Kueue 0.18 a finer one.
		evicted := recognize(pod, "workload", ev.reason+": "+ev.text, &f)
		if !evicted && !ev.warning {
			continue
		}
		// A Workload of the same name may have been that of an earlier environment.
		f.Final = f.Final && e.StatefulSet != nil && !ev.last.Before(e.StatefulSet.CreationTimestamp.Time)
		f.Seen += ": " + oneLine(ev.text)
		f.Next = strings.ReplaceAll(f.Next, "{workload}", workload)
		if kept, ok := latest(e.eventsOf("Pod", pod.Name, ""), "FailedScheduling", "FailedMount", "FailedCreatePodSandBox", "Failed", "Pulling",
			"Unhealthy"); ok && evicted && !kept.first.After(ev.last) {
			f.Seen += "; before that the pod had: " + oneLine(kept.text)
		}
		return f
	}
	return f
}

// saidOf returns what Kueue says of a Workload since it was last admitted, the newest first: its conditions, in which an eviction explains
// what it waits for now, or its events if the conditions are unknown.
func (e *explainer) saidOf(workload string) (said []event) {
	waits := func(kind string, status metav1.ConditionStatus, reason string) {
		if c := meta.FindStatusCondition(e.Workload, kind); c != nil && c.Status == status {
			at := c.LastTransitionTime.Time
			said = append(said, event{reason: reason + c.Reason, text: c.Message, first: at, last: at, warning: true})
		}
	}
	waits("Evicted", metav1.ConditionTrue, "EvictedDueTo")
	waits("QuotaReserved", metav1.ConditionFalse, "")
	if e.Workload != nil {
		return said
	}
	for _, ev := range slices.Backward(e.eventsOf("Workload", workload, "")) {
		if ev.reason == "QuotaReserved" || ev.reason == "Admitted" {
			break
		}
		said = append(said, ev)
	}
	return said
}

// byWords explains by the scheduler's message alone, because nodes may not be read. The message also counts nodes that
// the environment does not use.
func (e *explainer) byWords(u pendingPod) []fail.Finding {
	var found []fail.Finding
	v := u.message
	for _, resource := range v.lackingResources() {
		ask := RequestOf(&u.pod.Spec, resource)
		f := fail.Finding{
			Reason: fail.NodesUnavailable,
			Seen: fmt.Sprintf("the pod asks %s %s and %d of %d nodes have too little left (how much is unknown: nodes may not be read)",
				ask.String(), resource, v.countRejected("insufficient "+strings.ToLower(string(resource))), v.nodes),
			Next: describeNodes(namesAsked(&u.pod.Spec)),
		}
		if isGPU(resource) {
			f.Reason = fail.GPUsUnavailable
			f.Seen += e.holdersHere(resource)
		} else if isDevice(resource) {
			f.Next, f.Rail = resourceNames(resource), true
		}
		found = append(found, f)
	}
	if n := v.countRejected("were unschedulable", "node.kubernetes.io/"); n > 0 {
		found = append(found, fail.Finding{
			Reason: fail.NodesUnavailable, Seen: fmt.Sprintf("%d of %d nodes are cordoned or not ready", n, v.nodes),
			Next: "oc get nodes" + joined(namesAsked(&u.pod.Spec)),
		})
	}
	found = append(found, taintsByWords(u, len(found) > 0)...)
	if len(found) == 0 && v.countRejected("node affinity/selector", "anti-affinity") > 0 {
		f := fail.Finding{Reason: fail.NodesUnavailable, Seen: "no node fits: " + v.text, Next: "oc get nodes" + joined(namesAsked(&u.pod.Spec))}
		if names := namesAsked(&u.pod.Spec); names != nil {
			f.Seen += "; nodes.gpu_nodes allows " + firstNames(names, 8)
			f.Final = len(names) < e.Replicas()
		}
		recognize(u.pod, "scheduler", v.text, &f)
		found = append(found, f)
	}
	return found
}

// taintsByWords omits the taints of nodes with another role, which the message always counts, if there is another cause.
func taintsByWords(u pendingPod, explained bool) []fail.Finding {
	var found []fail.Finding
	for _, r := range u.message.rejections {
		if !strings.Contains(r.why, "taint") || strings.Contains(r.why, "node.kubernetes.io/") {
			continue
		}
		f := fail.Finding{Reason: fail.NodeTainted, Seen: fmt.Sprintf("%d of %d nodes: %s", r.nodes, u.message.nodes, r.why)}
		m := tainted.FindStringSubmatch(r.why)
		switch {
		case m != nil && strings.HasPrefix(m[1], "node-role.kubernetes.io/"):
			continue
		case m != nil:
			f.Next = toleration(corev1.Taint{Key: m[1], Value: m[2]})
		case explained:
			// Since 1.34 the message does not name the taint: it may be the control plane's.
			continue
		default:
			f.Next = "oc get nodes" + joined(namesAsked(&u.pod.Spec)) +
				" -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints (and add the GPU nodes' to nodes.tolerations in the cluster file)"
		}
		found = append(found, f)
	}
	return found
}

// byVolumes explains volumes that are missing or tie a pod to nodes. about is true if volumes are the scheduler's
// reason, even without a finding: claims may have one already, or the volume may still be provisioned.
func (e *explainer) byVolumes(u pendingPod, claims bool) (found []fail.Finding, about bool) {
	f := fail.Finding{
		Reason: fail.ClaimUnbound,
		Next:   fmt.Sprintf("oc describe pvc%s -n %s", joined(claimsOf(&u.pod.Spec)), u.pod.Namespace),
	}
	whole := strings.ToLower(u.message.whole)
	switch {
	case containsAny(whole, "persistentvolumeclaim"):
		f.Seen, f.Final = u.message.whole, containsAny(whole, "non-existent")
		if claims || !f.Final && e.now.Sub(u.since) < provisionTime {
			return nil, true
		}
	case u.message.countRejected("volume node affinity conflict", "didn't match persistentvolume's node affinity") > 0:
		f.Seen = "its volume can be used on other nodes only: " + u.message.text
	case u.message.countRejected("didn't find available persistent volumes to bind", "did not have enough free storage",
		"non-existent pv", "max volume count", "readwriteoncepod", "no available volume zone") > 0:
		f.Seen = "its volumes fit no node: " + u.message.text
	default:
		return nil, false
	}
	return []fail.Finding{f}, true
}

// describeNodes returns the command that shows the used resources of nodes, by default of all nodes with GPUs.
func describeNodes(names []string) string {
	if len(names) == 0 {
		return "oc describe nodes -l nvidia.com/gpu.present=true | grep -A8 -e ^Name: -e 'Allocated resources'"
	}
	return fmt.Sprintf("oc describe node%s | grep -A8 -e ^Name: -e 'Allocated resources'", joined(names))
}

// resourceNames returns the command that shows the resource names of network attachments: a resource that no node has is
// often misspelt.
func resourceNames(resource corev1.ResourceName) string {
	return fmt.Sprintf("oc get network-attachment-definitions -A -o yaml | grep -e ' name:' -e resourceName (is it %s there, and in "+
		"network.rdma.resources of the cluster file?)", resource)
}

// joined has a blank before each name, to follow a command.
func joined(names []string) string {
	return strings.TrimSuffix(" "+strings.Join(names, " "), " ")
}

// toleration returns the cluster file's entry that tolerates the taint.
func toleration(taint corev1.Taint) string {
	entry := "key: " + taint.Key
	if taint.Value == "" {
		entry += ", operator: Exists"
	} else {
		entry += fmt.Sprintf(", value: %q", taint.Value)
	}
	if taint.Effect != "" {
		entry += ", effect: " + string(taint.Effect)
	}
	return "add to nodes.tolerations in the cluster file: - {" + entry + "}"
}

func claimsOf(spec *corev1.PodSpec) []string {
	var names []string
	for _, v := range spec.Volumes {
		if v.PersistentVolumeClaim != nil && !slices.Contains(names, v.PersistentVolumeClaim.ClaimName) {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}
