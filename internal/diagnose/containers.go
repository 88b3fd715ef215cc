// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// manyRestarts makes a container's failure final: the kubelet has retried for over a minute.
const manyRestarts = 3

// killedCode is the exit code of a process ended by SIGKILL.
const killedCode = 137

// containers reports whether it finds something.
func (e *explainer) containers(pod *corev1.Pod) bool {
	before := len(e.findings)
	for _, c := range containersOf(pod) {
		if c.init && c.Ready || c.State.Running != nil && c.Ready {
			continue
		}
		switch {
		case c.lacksImage():
			e.add(e.explainImage(pod, c))
		case lastExit(c) != nil:
			e.add(e.exited(pod, c, *lastExit(c)))
		case c.trouble() != "":
			e.add(e.notCreated(pod, c))
		}
	}
	return len(e.findings) > before
}

// lastExit returns the container's last failure. An init container that succeeded has none.
func lastExit(c container) *corev1.ContainerStateTerminated {
	for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
		if t != nil && (t.ExitCode != 0 || !c.init) {
			return t
		}
	}
	return nil
}

var missingKey = regexp.MustCompile(`couldn't find key (\S+) in (Secret|ConfigMap) ([^/\s]+)/(\S+)`)

// notCreated explains a container that the kubelet or the runtime could not create.
func (e *explainer) notCreated(pod *corev1.Pod, c container) fail.Finding {
	w := c.State.Waiting
	f := fail.Finding{
		Reason: fail.ContainerFailed, Object: "pod " + pod.Name,
		Seen: fmt.Sprintf("%s: %s: %s", c.displayName(), w.Reason, oneLine(w.Message)),
		Next: fmt.Sprintf("oc describe pod %s -n %s", pod.Name, pod.Namespace),
	}
	if ev, ok := latest(e.podEvents(pod), "Failed"); ok {
		f.Since = ev.first
	}
	if m := missingKey.FindStringSubmatch(w.Message); m != nil {
		f.Next = fmt.Sprintf("oc describe %s %s -n %s (it has no key %s)", strings.ToLower(m[2]), m[4], m[3], m[1])
	} else if m := missingSource.FindStringSubmatch(w.Message); m != nil {
		f.Next = fmt.Sprintf("oc get %s %s -n %s", strings.ToLower(m[1]), m[2], pod.Namespace)
	} else {
		e.badProgram(pod, c, w.Message, &f)
	}
	return f
}

// exited explains a container that exited, or whose process could not start.
func (e *explainer) exited(pod *corev1.Pod, c container, t corev1.ContainerStateTerminated) fail.Finding {
	f := fail.Finding{
		Reason: fail.ContainerFailed, Object: "pod " + pod.Name, Since: t.FinishedAt.Time,
		Final: c.RestartCount >= manyRestarts && c.State.Running == nil,
	}
	previous := " --previous"
	if c.RestartCount == 0 {
		previous = ""
	}
	f.Next = fmt.Sprintf("oc logs %s -c %s%s -n %s", pod.Name, c.Name, previous, pod.Namespace)
	killedForMemory := kube.ReasonFor(t.Reason) == fail.OutOfMemory
	how := fmt.Sprintf("exited with %d", t.ExitCode)
	switch {
	case t.Signal != 0:
		how = fmt.Sprintf("was ended by signal %d", t.Signal)
	case killedForMemory:
		how = "was killed for memory"
	case t.ExitCode == killedCode:
		how += " (SIGKILL)"
	}
	if t.Reason != "" && t.Reason != "Error" && !killedForMemory && t.Reason != "Completed" {
		how += ", " + t.Reason
	}
	f.Seen = c.displayName() + " " + how + restarts(c.RestartCount)
	if t.Message != "" {
		f.Seen += ": " + lastLines(t.Message)
	}
	if killedForMemory {
		f.Reason = fail.OutOfMemory
		if limit, ok := c.spec.Resources.Limits[corev1.ResourceMemory]; ok {
			f.Seen += "; its limit is " + limit.String()
		}
		f.Next = "raise resources.limits.memory in the cluster file"
		return f
	}
	e.badProgram(pod, c, t.Message, &f)
	return f
}

func restarts(n int32) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", restarted once"
	}
	return fmt.Sprintf(", restarted %d times", n)
}

// badProgram recognises a program that can never start, and other messages of the runtime.
func (e *explainer) badProgram(pod *corev1.Pod, c container, text string, f *fail.Finding) {
	switch {
	case containsAny(strings.ToLower(text), "exec format error"):
		f.Final = true
		f.Seen += "; its image is for another processor than node " + pod.Spec.NodeName + e.architecture(pod.Spec.NodeName) + " has"
		f.Next = "oc image info " + c.imageName() + " --show-multiarch"
	default:
		recognize(pod, "container", text, f)
		f.Next = strings.ReplaceAll(f.Next, "{image}", c.imageName())
	}
}

// lastLines returns the end of a termination message, which has the error.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	const most = 5
	return oneLine(strings.Join(lines[max(0, len(lines)-most):], " | "))
}

// unansweredTime bounds the time from an agent's start to its first answer.
const unansweredTime = time.Minute

// unanswered explains a running container whose agent does not get ready.
func (e *explainer) unanswered(pod *corev1.Pod) {
	for _, c := range containersOf(pod) {
		if c.init || c.State.Running == nil || c.Ready || e.now.Sub(c.State.Running.StartedAt.Time) < unansweredTime {
			continue
		}
		seen := c.displayName() + " runs and its agent does not get ready"
		if ev, ok := latest(e.podEvents(pod), "Unhealthy"); ok {
			seen += ": " + oneLine(ev.text)
		}
		e.add(fail.Finding{
			Reason: fail.AgentUnreachable, Object: "pod " + pod.Name, Seen: seen, Since: c.State.Running.StartedAt.Time,
			Next: fmt.Sprintf("oc logs %s -c %s -n %s", pod.Name, c.Name, pod.Namespace),
		})
	}
}
