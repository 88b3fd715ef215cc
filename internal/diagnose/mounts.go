// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/known"
)

// devicesFailed is the reason of the kubelet's event about devices that a pod has by claims (DRA).
const devicesFailed = "FailedPrepareDynamicResources"

var (
	setUpFailed   = regexp.MustCompile(`(?s)^MountVolume\.(?:SetUp|MountDevice|WaitForAttach) failed for volume "([^"]*)" : (.*)$`)
	missingSource = regexp.MustCompile(`(?i)(secret|configmap) "([^"]*)" not found`)
	keyMissing    = regexp.MustCompile(`references non-existent (secret|config) key: (\S+)`)
)

// mounts explains a pod whose volumes, or devices by claims (DRA), the node cannot provide.
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
	if m := missingSource.FindStringSubmatch(text); m != nil {
		f.Reason = fail.ContainerFailed
		f.Next = fmt.Sprintf("oc get %s %s -n %s", strings.ToLower(m[1]), m[2], pod.Namespace)
	} else if keyMissing.MatchString(text) {
		f.Reason = fail.ContainerFailed
	} else {
		recognize(pod, "mount", text, &f)
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

// mountTrouble returns the last failure to attach or mount that still applies, preferably one that names its cause: neither the kubelet's
// summary nor the echo of an earlier failure does.
func mountTrouble(events []event) (event, bool) {
	var cause, echo, general event
	for _, ev := range events {
		switch ev.reason {
		case "SuccessfulAttachVolume":
			if cause.reason == "FailedAttachVolume" {
				cause = event{}
			}
			echo = event{}
		case "FailedMount", "FailedAttachVolume", "FailedMapVolume", devicesFailed:
			row, _ := known.Pods().FindOf("mount", ev.text)
			switch {
			case strings.HasPrefix(ev.text, "Unable to attach or mount volumes"):
				general = ev
			case row.Echo:
				echo = ev
			default:
				cause = ev
			}
		}
	}
	cause = cmp.Or(cause, echo, general)
	return cause, cause.reason != ""
}
