// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// explainer looks things up in a snapshot, and collects what it finds.
type explainer struct {
	Snapshot
	now      time.Time
	findings []fail.Finding
}

func (e *explainer) add(f fail.Finding) { e.findings = append(e.findings, f) }

func (e *explainer) namespace() string {
	switch {
	case e.StatefulSet != nil:
		return e.StatefulSet.Namespace
	case len(e.Pods) > 0:
		return e.Pods[0].Namespace
	}
	return "NAMESPACE"
}

func (e *explainer) serviceAccount() string {
	return cmp.Or(e.template().ServiceAccountName, "default")
}

// template returns the specification of every pod, empty if it is unknown.
func (e *explainer) template() *corev1.PodSpec {
	switch {
	case e.StatefulSet != nil:
		return &e.StatefulSet.Spec.Template.Spec
	case len(e.Pods) > 0:
		return &e.Pods[0].Spec
	}
	return &corev1.PodSpec{}
}

// podNames returns the names of all wanted pods, in order.
func (e *explainer) podNames() []string {
	var names []string
	for i := range e.Replicas() {
		if e.StatefulSet == nil {
			names = append(names, e.Pods[i].Name)
		} else {
			names = append(names, fmt.Sprintf("%s-%d", e.StatefulSet.Name, i))
		}
	}
	return names
}

func findNamed[T any, P interface {
	*T
	metav1.Object
}](objects []T, name string) P {
	for i := range objects {
		if object := P(&objects[i]); object.GetName() == name {
			return object
		}
	}
	return nil
}

// event is an event as findings read it.
type event struct {
	reason, text string
	first, last  time.Time
	object       types.UID
	warning      bool
	// node of the kubelet that sent the event, if a kubelet did.
	node string
}

// eventsOf returns the events about one object, oldest first. An empty UID selects every object that had the name.
func (e *explainer) eventsOf(kind, name string, uid types.UID) []event {
	var found []event
	for i := range e.Events {
		ev := &e.Events[i]
		about := ev.InvolvedObject
		if about.Kind != kind || about.Name != name || uid != "" && about.UID != "" && about.UID != uid {
			continue
		}
		first, last := times(ev)
		found = append(found, event{
			reason: ev.Reason,
			text:   strings.TrimPrefix(ev.Message, "(combined from similar events): "),
			first:  first, last: last, object: about.UID, warning: ev.Type == corev1.EventTypeWarning, node: ev.Source.Host,
		})
	}
	slices.SortStableFunc(found, func(a, b event) int { return a.last.Compare(b.last) })
	return found
}

// podEvents returns the events of this pod, but not of an earlier pod of the same name.
func (e *explainer) podEvents(pod *corev1.Pod) []event {
	return e.eventsOf("Pod", pod.Name, pod.UID)
}

// times of an event. The old and the new event API fill in different fields.
func times(ev *corev1.Event) (first, last time.Time) {
	first = cmp.Or(ev.FirstTimestamp.Time, ev.EventTime.Time, ev.CreationTimestamp.Time)
	last = first
	if t := ev.LastTimestamp.Time; t.After(last) {
		last = t
	}
	if ev.Series != nil && ev.Series.LastObservedTime.After(last) {
		last = ev.Series.LastObservedTime.Time
	}
	return first, last
}

// latest returns the last event with one of the reasons.
func latest(events []event, reasons ...string) (event, bool) {
	for _, ev := range slices.Backward(events) {
		if slices.Contains(reasons, ev.reason) {
			return ev, true
		}
	}
	return event{}, false
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}

func hasFinished(pod *corev1.Pod) bool {
	return released(pod) || pod.DeletionTimestamp != nil
}

// container is one of a pod's, with its specification.
type container struct {
	corev1.ContainerStatus
	spec corev1.Container
	init bool
}

// displayName returns "container train" or "init container agent".
func (c container) displayName() string {
	if c.init {
		return "init container " + c.Name
	}
	return "container " + c.Name
}

// trouble returns what the container waits for if that is not part of a normal start, else "".
func (c container) trouble() string {
	if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
		return w.Reason
	}
	return ""
}

// lacksImage reports whether the container's image cannot be pulled.
func (c container) lacksImage() bool { return kube.ReasonFor(c.trouble()) == fail.ImageUnavailable }

// containersOf returns the pod's containers that have a status, in the order in which they start.
func containersOf(pod *corev1.Pod) []container {
	var found []container
	add := func(statuses []corev1.ContainerStatus, specs []corev1.Container, init bool) {
		for _, status := range statuses {
			c := container{ContainerStatus: status, init: init}
			if i := slices.IndexFunc(specs, func(s corev1.Container) bool { return s.Name == status.Name }); i >= 0 {
				c.spec = specs[i]
			}
			found = append(found, c)
		}
	}
	add(pod.Status.InitContainerStatuses, pod.Spec.InitContainers, true)
	add(pod.Status.ContainerStatuses, pod.Spec.Containers, false)
	return found
}

// imageName returns the requested name; the status may have a resolved one.
func (c container) imageName() string { return cmp.Or(c.spec.Image, c.Image) }

// hasStarted reports whether some container of the pod has run, so that its network and volumes exist.
func hasStarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(containersOf(pod), func(c container) bool {
		return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil
	})
}
