package diagnose

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

var (
	noAttachment = regexp.MustCompile(`cannot find (?:get )?a network-attachment-definition \(([^)]*)\) in namespace \(([^)]*)\)`)
	noPlugin     = regexp.MustCompile(`failed to find plugin "([^"]*)" in path`)
	noSandbox    = regexp.MustCompile(`^Failed to create pod sandbox: (?:rpc error: code = \w+ desc = )?`)
)

// preparing are the events of a pod whose images are not being pulled yet, because its network and volumes come first.
func (e *explainer) preparing(pod *corev1.Pod) []event {
	events := e.podEvents(pod)
	if _, pulling := latest(events, "Pulling", "Pulled"); pulling || hasStarted(pod) {
		return nil
	}
	return events
}

// sandbox is about a pod whose network the node cannot create.
func (e *explainer) sandbox(pod *corev1.Pod, events []event) {
	ev, ok := latest(events, "FailedCreatePodSandBox", "NetworkNotReady")
	if !ok {
		return
	}
	node := pod.Spec.NodeName
	f := fail.Finding{
		Reason: fail.ContainerFailed, Object: "pod " + pod.Name, Since: ev.first,
		Seen: fmt.Sprintf("node %s cannot create the pod's network: %s", node, oneLine(noSandbox.ReplaceAllString(ev.text, ""))),
		Next: fmt.Sprintf("oc get pods -A -o wide --field-selector spec.nodeName=%s | grep -e multus -e ovn -e cni", node),
	}
	lower := strings.ToLower(ev.text)
	attachment, plugin := noAttachment.FindStringSubmatch(ev.text), noPlugin.FindStringSubmatch(ev.text)
	switch {
	case attachment != nil:
		f.Final, f.Rail = true, true
		f.Seen = fmt.Sprintf("network attachment %s does not exist in namespace %s", attachment[1], attachment[2])
		f.Next = fmt.Sprintf("oc get network-attachment-definitions -n %s (and correct network.rdma.attachments in the cluster file)", attachment[2])
	case plugin != nil:
		f.Rail = true
		f.Seen = fmt.Sprintf("node %s has no CNI plugin %s, which a network attachment of the pod needs", node, plugin[1])
	case has(lower, "could not allocate ip", "no ip addresses available", "whereabouts"):
		f.Rail = true
		f.Next = "oc get ippools.whereabouts.cni.cncf.io -A (is a range of the network attachments full?)"
	case has(lower, "no runtime for", "runtimehandler"):
		f.Final = true
		f.Next = "oc get runtimeclass"
	}
	e.add(f)
}
