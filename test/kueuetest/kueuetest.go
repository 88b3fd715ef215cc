// SPDX-License-Identifier: Apache-2.0

// Package kueuetest stands in for Kueue in unit tests. For versions that differ in it, a stand-in marks StatefulSets and
// their pods as that version's webhooks and controllers do, and serves objects in that version's API. It admits nothing. The
// source is pkg/controller/jobs of sigs.k8s.io/kueue at the version's tag, folders statefulset and pod.
package kueuetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Version is a version of Kueue with its default feature gates.
type Version struct {
	Name string
	// API lists the served versions of its API groups.
	API []string
	// managed reports whether the template has the label managed, parent whether it has the annotation pod-suspending-parent.
	managed, parent bool
	// later reports whether a controller puts queue, priority and group on the pods once they exist. Otherwise the webhook
	// puts them on the template.
	later bool
	// annotation reports whether the group's name is an annotation.
	annotation bool
	// Topology reports whether topologies count. All pods have their gate then.
	Topology bool
}

// Versions are versions that differ, the oldest first: the first with StatefulSets and priorities, and those at which
// something changed.
var Versions = []Version{
	{Name: "v0.9.5", API: []string{"v1beta1"}},
	{Name: "v0.10.6", API: []string{"v1beta1"}, parent: true},
	{Name: "v0.14.8", API: []string{"v1beta1"}, parent: true, managed: true, Topology: true},
	{Name: "v0.15.5", API: []string{"v1beta1", "v1beta2"}, parent: true, managed: true, Topology: true},
	{Name: "v0.15.8", API: []string{"v1beta1", "v1beta2"}, parent: true, later: true, Topology: true},
	{Name: "v0.17.0", API: []string{"v1beta1", "v1beta2"}, parent: true, later: true, Topology: true},
	{Name: "v0.19.2", API: []string{"v1beta1", "v1beta2"}, parent: true, later: true, Topology: true, annotation: true},
}

// prefix begins the names of Kueue's labels, annotations and gates.
const prefix = "kueue.x-k8s.io/"

// Workload returns the name of the Workload of a StatefulSet.
func Workload(set *appsv1.StatefulSet) string { return "statefulset-" + set.Name + "-1a2b3" }

// Admit does the work of the webhook for StatefulSets. It ignores one without a queue.
func (v Version) Admit(set *appsv1.StatefulSet) {
	queue := set.Labels[prefix+"queue-name"]
	if queue == "" {
		return
	}
	template := &set.Spec.Template
	labels, annotations := map[string]string{}, map[string]string{}
	if v.parent {
		annotations["pod-suspending-parent"] = "statefulset"
	}
	if v.managed {
		labels["managed"] = "true"
	}
	if !v.later {
		v.group(set, labels, annotations)
	}
	template.Labels, template.Annotations = with(template.Labels, labels), with(template.Annotations, annotations)
}

// group adds what makes the pods one group.
func (v Version) group(set *appsv1.StatefulSet, labels, annotations map[string]string) {
	name := labels
	if v.annotation {
		name = annotations
	}
	name["pod-group-name"] = Workload(set)
	if v.later {
		name["prebuilt-workload-name"] = Workload(set)
	}
	labels["queue-name"] = set.Labels[prefix+"queue-name"]
	if priority := set.Labels[prefix+"priority-class"]; priority != "" {
		labels["priority-class"] = priority
	}
	annotations["pod-group-total-count"] = strconv.Itoa(int(*set.Spec.Replicas))
	annotations["pod-group-fast-admission"] = "true"
}

// Hold makes a pod of the StatefulSet one that waits to be admitted: with what is in the template, with the gates of the
// webhook for pods, and with the marks of the controller for pods if grouped.
func (v Version) Hold(pod *corev1.Pod, set *appsv1.StatefulSet, grouped bool) {
	labels, annotations := map[string]string{}, map[string]string{}
	if !v.parent || v.later && grouped {
		labels["managed"] = "true"
	}
	if v.later && grouped {
		v.group(set, labels, annotations)
	}
	pod.Labels = with(maps.Clone(set.Spec.Template.Labels), labels, pod.Labels)
	pod.Annotations = with(maps.Clone(set.Spec.Template.Annotations), annotations, pod.Annotations)
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: prefix + "admission"}}
	if v.Topology {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: prefix + "topology"})
	}
}

// with adds Kueue's own marks to others, and then more as they are.
func with(others, own map[string]string, more ...map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, others)
	for key, value := range own {
		all[prefix+key] = value
	}
	for _, m := range more {
		maps.Copy(all, m)
	}
	return all
}

// Handler serves objects in this version's API. objects are by the path behind the API's version, as in
// namespaces/ml/localqueues/team-a.
func (v Version) Handler(objects map[string]any) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/{group}/{version}/{path...}", func(w http.ResponseWriter, r *http.Request) {
		object, ok := objects[r.PathValue("path")]
		if !ok || !slices.Contains(v.API, r.PathValue("version")) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(object) // a test's client has gone
	})
	return mux
}

// Queue returns LocalQueue team-a of namespace ml with its ClusterQueue as objects for Handler. It has a flavour for each of
// topologies, which are node labels, nil for none. Since 0.15 a LocalQueue does not list its flavours.
func (v Version) Queue(topologies ...[]string) map[string]any {
	objects := map[string]any{}
	var flavours, status []object
	for i, levels := range topologies {
		name := fmt.Sprintf("flavour-%d", i)
		flavour, seen := object{}, object{"name": name}
		if levels != nil {
			var nodeLabels []object
			for _, level := range levels {
				nodeLabels = append(nodeLabels, object{"nodeLabel": level})
			}
			objects["topologies/"+name] = object{"spec": object{"levels": nodeLabels}}
			flavour["topologyName"] = name
			seen["topology"] = object{"name": name, "levels": levels}
		}
		objects["resourceflavors/"+name] = object{"spec": flavour}
		flavours, status = append(flavours, object{"name": name}), append(status, seen)
	}
	queue := object{"spec": object{"clusterQueue": "gpus"}}
	if !slices.Contains(v.API, "v1beta2") {
		queue["status"] = object{"flavors": status}
	}
	objects["namespaces/ml/localqueues/team-a"] = queue
	objects["clusterqueues/gpus"] = object{"spec": object{"resourceGroups": []object{{"flavors": flavours}}}}
	return objects
}

// object is a JSON object.
type object = map[string]any
