// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/known"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	// rejectionTime is how long a rejection counts after the pod was recreated: another one would come sooner.
	rejectionTime = 2 * time.Minute
	// endTime is how long a pod may exist after its grace period.
	endTime = time.Minute
)

var (
	// refusedResource is the resource that the kubelet's device manager names (kubernetes:pkg/kubelet/cm/devicemanager/manager.go): "cannot
	// allocate unhealthy devices nvidia.com/gpu", "cannot allocate unregistered device amd.com/gpu".
	refusedResource = regexp.MustCompile(`(?:^|[\s"'(])((?:[a-z0-9-]+\.)+[a-z0-9-]+/[A-Za-z0-9](?:[\w.-]*\w)?)`)
	// gpuWords matches messages of NVIDIA's plugin and library, which name no resource.
	gpuWords = regexp.MustCompile(`(?i)\bnvml|\bnvidia\b|\bgpus?\b|GPU-[0-9a-f]{8}-|MIG-[0-9a-f]{8}-|\bcuda\b|device link information|` +
		`\bxid\b|fallen off the bus|unable to determine the device handle`)
	// railWords matches messages of plugins for network devices.
	railWords = regexp.MustCompile(`(?i)sr-?iov|\brdma\b|\bmlx5_|\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b`)
)

// podEnd explains a pod that its node rejected or evicted, or that does not end.
func (e *explainer) podEnd(pod *corev1.Pod) {
	switch deleted := pod.DeletionTimestamp; {
	case deleted != nil && e.now.Sub(deleted.Time) >= endTime:
		e.add(fail.Finding{
			Reason: fail.PodsNotReady, Object: "pod " + pod.Name, Since: deleted.Time,
			Seen: "an earlier pod of this name should have ended but still exists on node " + pod.Spec.NodeName,
			Next: fmt.Sprintf("oc describe pod %s -n %s", pod.Name, pod.Namespace),
		})
	case deleted == nil && pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "":
		f := e.rejectionFinding(pod.Status.Reason, pod.Status.Message, pod.Spec.NodeName)
		f.Object = "pod " + pod.Name
		if c := condition(pod, corev1.DisruptionTarget); c != nil {
			f.Since = c.LastTransitionTime.Time
		}
		e.add(f)
	}
}

// rejections explains rejected pods that the StatefulSet has recreated, perhaps for ever. Only their events are left.
func (e *explainer) rejections() {
	for _, name := range e.podNames() {
		pod := findNamed(e.Pods, name)
		if pod != nil && (kube.IsReady(pod) || pod.Status.Phase == corev1.PodFailed) {
			continue
		}
		for _, ev := range e.eventsOf("Pod", name, "") {
			if !isRejection(ev.reason) || pod != nil && ev.object == pod.UID || e.now.Sub(ev.last) > rejectionTime {
				continue
			}
			if e.StatefulSet != nil && ev.last.Before(e.StatefulSet.CreationTimestamp.Time) {
				continue
			}
			f := e.rejectionFinding(ev.reason, ev.text, ev.node)
			f.Object, f.Since = "pod "+name, ev.first
			// A plugin that only restarts takes devices again by then.
			f.Final = f.Final || f.Reason == fail.GPUMissing && ev.last.Sub(ev.first) >= rejectionTime
			e.add(f)
		}
	}
}

func isRejection(reason string) bool {
	switch reason {
	case "UnexpectedAdmissionError", "TopologyAffinityError", "SMTAlignmentError", "Evicted", "Preempted":
		return true
	}
	return strings.HasPrefix(reason, "OutOf")
}

// rejectionFinding explains why a node rejected or evicted the pod.
func (e *explainer) rejectionFinding(reason, message, node string) fail.Finding {
	host, by := node, "node "+node
	if node == "" {
		node, by = "NODE", "its node rejected it"
	}
	f := fail.Finding{
		Reason: cmp.Or(kube.ReasonFor(reason), fail.NodesUnavailable), Next: "oc describe node " + node,
		Seen: fmt.Sprintf("%s: %s: %s", by, reason, oneLine(strings.TrimPrefix(message, "Pod was rejected: "))),
	}
	resource, out := strings.CutPrefix(reason, "OutOf")
	row, isKnown := known.Pods().FindOf("admission", message)
	switch gpu, rail := e.refusedDevice(reason, message); {
	case isKnown && row.Whose == known.Request:
		f.Reason, f.Final, f.Next = row.Reason, row.Final, row.Next
		f.Seen += "; " + row.Means
	case gpu:
		// The scheduler expected more working GPUs. Only a fault of the node's own is a reason to leave it out.
		f.Reason, f.Final = fail.GPUMissing, row.Final
		if row.Whose == known.Node {
			f.Host = host
		}
		f.Next = fmt.Sprintf("oc get pods -A -o wide --field-selector spec.nodeName=%s | grep -e device-plugin -e gpu-operator; "+
			"leave the node out meanwhile: --exclude-nodes=%[1]s", node)
	case rail:
		f.Rail = true
	case out && isGPU(corev1.ResourceName(resource)), f.Reason == fail.GPUsUnavailable:
		f.Reason = fail.GPUsUnavailable
		f.Next = describeNodes([]string{node})
	case reason == "Evicted" && containsAny(strings.ToLower(message), "low on resource: memory"):
		f.Reason = fail.OutOfMemory
	}
	return f
}

// refusedDevice reports whether a node's device plugin did not give the pod its GPUs, or its RDMA devices. If a message has no
// words of either, the pod's requests decide.
func (e *explainer) refusedDevice(reason, message string) (gpu, rail bool) {
	if reason != "UnexpectedAdmissionError" {
		return false, false
	}
	if m := refusedResource.FindStringSubmatch(message); m != nil {
		return isGPU(corev1.ResourceName(m[1])), isDevice(corev1.ResourceName(m[1]))
	}
	switch {
	case gpuWords.MatchString(message):
		return true, false
	case railWords.MatchString(message):
		return false, true
	case !containsAny(strings.ToLower(message), "allocate failed", "device plugin"):
		return false, false
	}
	spec := e.template()
	gpu = len(gpusAsked(spec)) > 0
	for _, c := range spec.Containers {
		for name := range c.Resources.Limits {
			gpu = gpu && !isDevice(name)
		}
	}
	return gpu, false
}

// nodeProblem explains what is wrong with the node that the pod is on.
func (e *explainer) nodeProblem(pod *corev1.Pod) {
	node := pod.Spec.NodeName
	seen := ""
	var from time.Time
	switch n := findNamed(e.Nodes, node); {
	case n != nil:
		if state, message, since := notReady(n); state != "" {
			seen, from = fmt.Sprintf("its node %s %s: %s", node, state, message), since
		}
	case e.Nodes != nil:
		seen = "its node " + node + " no longer exists"
	default:
		events := e.podEvents(pod)
		if last := len(events) - 1; last >= 0 && events[last].reason == "NodeNotReady" {
			seen, from = "its node "+node+" is not ready", events[last].first
		}
	}
	if seen != "" {
		e.add(fail.Finding{Reason: fail.NodesUnavailable, Object: "pod " + pod.Name, Seen: seen, Since: from, Next: "oc describe node " + node})
	}
}
