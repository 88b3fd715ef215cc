// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

var (
	setUpFailed   = regexp.MustCompile(`(?s)^MountVolume\.(?:SetUp|MountDevice|WaitForAttach) failed for volume "([^"]*)" : (.*)$`)
	missingSource = regexp.MustCompile(`(?i)(secret|configmap) "([^"]*)" not found`)
	keyMissing    = regexp.MustCompile(`references non-existent (secret|config) key: (\S+)`)
)

// mounts explains a pod whose volumes the node cannot provide.
func (e *explainer) mounts(pod *corev1.Pod, events []event) {
	ev, ok := mountTrouble(events)
	if !ok {
		return
	}
	f := fail.Finding{
		Reason: fail.ClaimUnbound, Object: "pod " + pod.Name, Since: ev.first, Seen: oneLine(ev.text),
		Next: fmt.Sprintf("oc describe pod %s -n %s", pod.Name, pod.Namespace),
	}
	text := ev.text
	if m := setUpFailed.FindStringSubmatch(text); m != nil {
		f.Seen = fmt.Sprintf("volume %s cannot be mounted: %s", m[1], oneLine(m[2]))
		text = m[2]
		if !ofClaim(pod, m[1]) {
			f.Reason = fail.PodsNotReady
		}
	}
	lower := strings.ToLower(text)
	switch m := missingSource.FindStringSubmatch(text); {
	case m != nil:
		f.Reason = fail.ContainerFailed
		f.Next = fmt.Sprintf("oc get %s %s -n %s", strings.ToLower(m[1]), m[2], pod.Namespace)
	case keyMissing.MatchString(text):
		f.Reason = fail.ContainerFailed
	case strings.HasPrefix(text, "Multi-Attach error"):
		f.Seen += " (a ReadWriteOnce volume is for one node at a time)"
		f.Next = "wait until the other pod is gone, or give each node its own claim: storage.mode: volumeClaimTemplates in the cluster file"
	case has(lower, "not found in the list of registered csi drivers"):
		f.Next = fmt.Sprintf("oc get pods -A -o wide --field-selector spec.nodeName=%s | grep -i csi (the driver's pod on this node)",
			pod.Spec.NodeName)
	case has(lower, "mount.nfs", "connection timed out", "no route to host", "connection refused"):
		f.Next = fmt.Sprintf("oc get pvc%s -n %s -o custom-columns=NAME:.metadata.name,CLASS:.spec.storageClassName,VOLUME:.spec.volumeName "+
			"(is the class's server up, and may %s reach it?)",
			joined(claimsOf(&pod.Spec)), pod.Namespace, pod.Spec.NodeName)
	}
	e.add(f)
}

// ofClaim reports whether an event's volume belongs to a claim: it then has the PersistentVolume's name, otherwise the
// name of a volume of the pod.
func ofClaim(pod *corev1.Pod, volume string) bool {
	for _, v := range pod.Spec.Volumes {
		if v.Name == volume {
			return v.PersistentVolumeClaim != nil
		}
	}
	return true
}

// mountTrouble returns the last failure to attach or mount that still applies, preferably one that names its cause.
func mountTrouble(events []event) (event, bool) {
	var cause, general event
	for _, ev := range events {
		switch ev.reason {
		case "SuccessfulAttachVolume":
			if cause.reason == "FailedAttachVolume" {
				cause = event{}
			}
		case "FailedMount", "FailedAttachVolume", "FailedMapVolume":
			if strings.HasPrefix(ev.text, "Unable to attach or mount volumes") {
				general = ev
			} else {
				cause = ev
			}
		}
	}
	cause = cmp.Or(cause, general)
	return cause, cause.reason != ""
}
