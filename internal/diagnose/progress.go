// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Progress has a line for each pod with its state.
func Progress(s Snapshot, now time.Time) []string {
	e := &explainer{Snapshot: s, now: now}
	var lines []string
	for _, name := range e.podNames() {
		line := "not created yet"
		if pod := findNamed(e.Pods, name); pod != nil {
			line = e.progress(pod)
		}
		lines = append(lines, name+": "+line)
	}
	return lines
}

func (e *explainer) progress(pod *corev1.Pod) string {
	node := pod.Spec.NodeName
	switch {
	case pod.DeletionTimestamp != nil:
		// The timestamp is the end of the grace period.
		return "an earlier pod of this name is ending"
	case pod.Status.Phase == corev1.PodFailed:
		return oneLine("failed: " + pod.Status.Reason + ": " + pod.Status.Message)
	case node == "":
		if f, gated := e.explainGate(pod); gated {
			return "waiting for its queue" + sinceText(f.Since, e.now) + e.waiting(pod).Seen
		}
		u, ok := e.waitsForNode(pod)
		if !ok {
			return "waiting for a node"
		}
		return "waiting for a node" + sinceText(u.since, e.now) + ": " + u.message.essence()
	case kube.IsReady(pod):
		return "on " + node + ", ready"
	}
	return "on " + node + ", " + e.onNode(pod)
}

// onNode returns the state of a pod that has a node and is not ready.
func (e *explainer) onNode(pod *corev1.Pod) string {
	for _, c := range containersOf(pod) {
		if c.init && c.Ready {
			continue
		}
		if c.lacksImage() {
			return fmt.Sprintf("cannot pull image %s%s (%s)", c.imageName(), sinceText(e.firstPullError(pod, c.imageName()), e.now), c.trouble())
		}
		if exit := lastExit(c); exit != nil {
			return fmt.Sprintf("%s ended with %d%s", c.displayName(), exit.ExitCode, restarts(c.RestartCount))
		}
		if c.State.Running != nil && !c.init {
			return "agent not answering yet" + sinceText(c.State.Running.StartedAt.Time, e.now)
		}
		if c.trouble() != "" {
			return c.displayName() + ": " + c.trouble()
		}
	}
	events := e.podEvents(pod)
	if image, at, ok := pulling(events); ok {
		return "pulling image " + image + sinceText(at, e.now)
	}
	if _, ok := latest(events, "Pulled"); !ok {
		if ev, ok := latest(events, "VolumePermissionChangeInProgress"); ok {
			return "setting the owner of its volumes" + sinceText(ev.first, e.now)
		}
		if ev, ok := mountTrouble(e.preparing(pod)); ok {
			if ev.reason == devicesFailed {
				return "waiting for its devices" + sinceText(ev.first, e.now)
			}
			return "waiting for its volumes" + sinceText(ev.first, e.now)
		}
	}
	return "starting"
}

// pulling returns the image that the kubelet pulls now, and since when, by the kubelet's events.
func pulling(events []event) (image string, at time.Time, ok bool) {
	for _, ev := range events {
		rest, began := strings.CutPrefix(ev.text, "Pulling image ")
		switch {
		case ev.reason == "Pulling" && began:
			image, at, ok = strings.Trim(rest, `"`), ev.last, true
		case (ev.reason == "Pulled" || ev.reason == "Failed") && ok && strings.Contains(ev.text, `"`+image+`"`):
			ok = false
		}
	}
	return image, at, ok
}
