// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

var (
	noAttachment = regexp.MustCompile(`cannot find (?:get )?a network-attachment-definition \(([^)]*)\) in namespace \(([^)]*)\)`)
	noPlugin     = regexp.MustCompile(`failed to find plugin "([^"]*)" in path`)
	noSandbox    = regexp.MustCompile(`^Failed to create pod sandbox: (?:rpc error: code = \w+ desc = )?`)
)

// preparing returns the events of a pod whose images are not being pulled yet, because its network and volumes come first.
func (e *explainer) preparing(pod *corev1.Pod) []event {
	events := e.podEvents(pod)
	if _, pulling := latest(events, "Pulling", "Pulled"); pulling || hasStarted(pod) {
		return nil
	}
	return events
}

// sandbox explains a pod whose network the node cannot create.
func (e *explainer) sandbox(pod *corev1.Pod, events []event) {
	ev, ok := latest(events, "FailedCreatePodSandBox", "NetworkNotReady")
	if !ok {
		return
	}
	node := pod.Spec.NodeName
	text := noSandbox.ReplaceAllString(ev.text, "")
	name, failure := failedAttachment(pod, events, text)
	f := fail.Finding{
		Reason: fail.ContainerFailed, Object: "pod " + pod.Name, Since: ev.first,
		Seen: fmt.Sprintf("node %s cannot create the pod's network: %s", node, oneLine(failure)),
		Next: fmt.Sprintf("oc get pods -A -o wide --field-selector spec.nodeName=%s | grep -e multus -e ovn -e cni", node),
	}
	attachment, plugin := noAttachment.FindStringSubmatch(ev.text), noPlugin.FindStringSubmatch(ev.text)
	switch {
	case attachment != nil:
		f.Final, f.Rail = true, true
		f.Seen = fmt.Sprintf("network attachment %s does not exist in namespace %s", attachment[1], attachment[2])
		f.Next = fmt.Sprintf("oc get network-attachment-definitions -n %s (and correct network.rdma.attachments in the cluster file)",
			attachment[2])
	case plugin != nil && !slices.Contains(podNetworkPlugins, plugin[1]):
		f.Rail = true
		f.Seen = fmt.Sprintf("node %s has no CNI plugin %s, which a network attachment of the pod needs", node, plugin[1])
	case name != "":
		f.Rail = true
		f.Seen = fmt.Sprintf("node %s cannot give the pod network attachment %s: %s", node, name, oneLine(failure))
		recognize(pod, "attachment", failure, &f)
	default:
		recognize(pod, "network", ev.text, &f)
	}
	e.add(f)
}

// podNetworkPlugins serve the network that every pod has.
var podNetworkPlugins = []string{"loopback", "portmap", "bandwidth", "firewall", "tuning", "multus", "multus-shim",
	"ovn-k8s-cni-overlay", "openshift-sdn", "calico", "cilium-cni", "flannel"}

var (
	// failedNetwork is Multus' "error adding container to network "rail1": ...", before its version 3.4 "Err adding pod to network", and
	// "GetNetworkDelegates: ..." as it reads the attachments that the pod asks for.
	failedNetwork = regexp.MustCompile(`(?s)(?:(?:error adding container|Err adding pod) to network "([^"]*)"|GetNetworkDelegates): (.*)`)
	// addedInterface is Multus' event for each network that it has added, since its version 3.7.
	addedInterface = regexp.MustCompile(`^Add eth0 \[.*?\](?: from (\S+))?`)
	// attachmentWords are names of CNI plugins and IPAM that only attachments use, and of the interfaces that attachments get.
	attachmentWords = regexp.MustCompile(`(?i)sr-?iov|infiniband|ib-kubernetes|ipoib|macvlan|ipvlan|host-device|` +
		`whereabouts|could not allocate ip\b|no ip addresses available|\bnet\d+\b`)
)

// failedAttachment returns the pod's network attachment that a failure names, in the words of any CNI, "" if it names none, and the end
// of the text, which is about it.
func failedAttachment(pod *corev1.Pod, events []event, text string) (name, failure string) {
	failure = text
	network, asked := "", false
	if m := failedNetwork.FindStringSubmatch(text); m != nil {
		network, failure, asked = m[1], m[2], m[1] == ""
	}
	attachments := attachmentsOf(pod)
	if len(attachments) == 0 && network == "" {
		return "", failure // it is about the network that every pod has
	}
	for _, name := range attachments {
		_, short, _ := strings.Cut(name, "/")
		word := regexp.MustCompile(`(?:["':/]|\bnetwork )` + regexp.QuoteMeta(short) + `(?:$|[^\w.-])`)
		if network == short || network == name || strings.Contains(failure, name) || network == "" && word.MatchString(text) {
			return name, failure
		}
	}
	// The configuration of an attachment may call it something else.
	usual := "one of " + strings.Join(attachments, ", ")
	if len(attachments) < 2 {
		usual = strings.Join(attachments, "")
	}
	for _, ev := range events {
		m := addedInterface.FindStringSubmatch(ev.text)
		if ev.reason == "AddedInterface" && m != nil && len(attachments) > 0 && (network == "" || m[1] != network) {
			return cmp.Or(network, usual), failure
		}
	}
	if asked || attachmentWords.MatchString(failure) {
		return cmp.Or(network, usual, "of a kind that the message names"), failure
	}
	if network != "" {
		failure = network + ": " + failure
	}
	return "", failure
}

// attachmentsOf returns the pod's network attachments as NAMESPACE/NAME. Its annotation has them as a list of names or as JSON
// (k8snetworkplumbingwg/multi-net-spec).
func attachmentsOf(pod *corev1.Pod) (names []string) {
	value := strings.TrimSpace(pod.Annotations[objects.NetworksAnnotation])
	var elements []struct{ Name, Namespace string }
	if json.Unmarshal([]byte(value), &elements) == nil {
		for _, element := range elements {
			names = append(names, cmp.Or(element.Namespace, pod.Namespace)+"/"+element.Name)
		}
		return names
	}
	for name := range strings.SplitSeq(value, ",") {
		name, _, _ = strings.Cut(strings.TrimSpace(name), "@")
		if name != "" && !strings.Contains(name, "/") {
			name = pod.Namespace + "/" + name
		}
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}
