package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// explainer is a snapshot at a time, with the look-ups that findings need.
type explainer struct {
	Snapshot
	now time.Time
}

func newExplainer(s Snapshot, now time.Time) *explainer {
	return &explainer{Snapshot: s, now: now}
}

// namespace of the environment, as it stands in commands.
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
	name := ""
	if spec := e.template(); spec != nil {
		name = spec.ServiceAccountName
	}
	if name == "" {
		return "default"
	}
	return name
}

// template is what every pod is made from, nil where that is not known.
func (e *explainer) template() *corev1.PodSpec {
	switch {
	case e.StatefulSet != nil:
		return &e.StatefulSet.Spec.Template.Spec
	case len(e.Pods) > 0:
		return &e.Pods[0].Spec
	}
	return nil
}

// replicas is how many pods there should be.
func (e *explainer) replicas() int {
	if e.StatefulSet == nil {
		return len(e.Pods)
	}
	if e.StatefulSet.Spec.Replicas == nil {
		return 1
	}
	return int(*e.StatefulSet.Spec.Replicas)
}

// podNames are those of every pod there should be, in order.
func (e *explainer) podNames() []string {
	var names []string
	if e.StatefulSet == nil {
		for i := range e.Pods {
			names = append(names, e.Pods[i].Name)
		}
		return names
	}
	for i := range e.replicas() {
		names = append(names, fmt.Sprintf("%s-%d", e.StatefulSet.Name, i))
	}
	return names
}

func (e *explainer) podNamed(name string) *corev1.Pod {
	i := slices.IndexFunc(e.Pods, func(p corev1.Pod) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &e.Pods[i]
}

func (e *explainer) node(name string) *corev1.Node {
	i := slices.IndexFunc(e.Nodes, func(n corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &e.Nodes[i]
}

// event is an event as findings read it.
type event struct {
	reason, text string
	first, last  time.Time
	object       types.UID
	// node whose kubelet says so, "" of others.
	node string
}

// eventsOf are the events about one object, oldest first. An empty UID takes
// those of every object that had the name.
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
			first:  first, last: last, object: about.UID, node: ev.Source.Host,
		})
	}
	slices.SortStableFunc(found, func(a, b event) int { return a.last.Compare(b.last) })
	return found
}

// podEvents are the events of this very pod, not of an earlier one of its name.
func (e *explainer) podEvents(pod *corev1.Pod) []event {
	return e.eventsOf("Pod", pod.Name, pod.UID)
}

// times of an event. The old and the new event API fill in different fields.
func times(ev *corev1.Event) (first, last time.Time) {
	for _, t := range []time.Time{ev.FirstTimestamp.Time, ev.EventTime.Time, ev.CreationTimestamp.Time} {
		if !t.IsZero() {
			first = t
			break
		}
	}
	last = first
	if t := ev.LastTimestamp.Time; t.After(last) {
		last = t
	}
	if ev.Series != nil && ev.Series.LastObservedTime.After(last) {
		last = ev.Series.LastObservedTime.Time
	}
	return first, last
}

// latest is the last event with one of the reasons.
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

func ready(pod *corev1.Pod) bool {
	c := condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
}

// hasFinished is true of a pod that will run no more.
func hasFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded || pod.DeletionTimestamp != nil
}

// container is one of a pod's, with its specification.
type container struct {
	corev1.ContainerStatus
	spec corev1.Container
	init bool
}

// title is "container train" or "init container agent".
func (c container) title() string {
	if c.init {
		return "init container " + c.Name
	}
	return "container " + c.Name
}

// containersOf are those of the pod that the kubelet has said something about,
// in the order in which they start.
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

// image is as the pod asks for it; the status may have a resolved name.
func (c container) image() string {
	if c.spec.Image != "" {
		return c.spec.Image
	}
	return c.Image
}

// hasStarted is true once some container of the pod has run: its sandbox, its
// network and its volumes are there.
func hasStarted(pod *corev1.Pod) bool {
	for _, c := range containersOf(pod) {
		if c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil {
			return true
		}
	}
	return false
}
