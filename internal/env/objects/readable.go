package objects

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

// keyedList are elements of a list by their key. Nobody but us adds elements to the
// lists of a StatefulSet, so one that is not wanted is a difference.
type keyedList map[string]any

// keyOf are the lists that have one.
var keyOf = map[string]string{
	"containers": "name", "initContainers": "name", "ports": "name", "volumes": "name", "volumeMounts": "mountPath",
}

// readable is a StatefulSet's spec as nested maps, with lists made into something
// that can be compared element by element and shown.
func readable(set *appsv1.StatefulSet) map[string]any {
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&set.Spec)
	if err != nil {
		// A Kubernetes type that is no JSON object would be a bug in its library.
		panic(fmt.Sprintf("reading the spec of statefulset %s: %v", set.Name, err))
	}
	templates := keyedList{}
	for _, template := range list(spec["volumeClaimTemplates"]) {
		template := template.(map[string]any)
		name := template["metadata"].(map[string]any)["name"].(string)
		templates[name] = readableValue("", template["spec"])
	}
	spec["volumeClaimTemplates"] = templates
	// These are there only if wanted: an empty one is compared too.
	pod := spec["template"].(map[string]any)["spec"].(map[string]any)
	affinity, _ := pod["affinity"].(map[string]any)
	if affinity == nil {
		affinity = map[string]any{}
		pod["affinity"] = affinity
	}
	affinity["nodeAffinity"] = nodesOf(affinity["nodeAffinity"])
	pod["imagePullSecrets"] = brief(pod["imagePullSecrets"])
	return readableValue("", spec).(map[string]any)
}

func list(value any) []any {
	items, _ := value.([]any)
	return items
}

func readableValue(name string, value any) any {
	switch value := value.(type) {
	case keyedList:
		return value
	case map[string]any:
		result := map[string]any{}
		for key, inner := range value {
			if inner != nil {
				result[key] = readableValue(key, inner)
			}
		}
		if name == "requests" || name == "limits" {
			return keyedList(result)
		}
		return result
	case []any:
		if name == "env" {
			return variablesOf(value)
		}
		key, ok := keyOf[name]
		if !ok {
			return brief(value)
		}
		elements := keyedList{}
		for _, element := range value {
			element := element.(map[string]any)
			elements[fmt.Sprint(element[key])] = readableValue("", element)
		}
		return elements
	}
	return value
}

func variablesOf(env []any) keyedList {
	variables := keyedList{}
	for _, v := range env {
		v := v.(map[string]any)
		value, _ := v["value"].(string)
		if from, ok := v["valueFrom"].(map[string]any); ok {
			// apiVersion is the API server's.
			field, _ := from["fieldRef"].(map[string]any)
			value = fmt.Sprintf("the pod's %v", field["fieldPath"])
		}
		variables[fmt.Sprint(v["name"])] = value
	}
	return variables
}

// nodesOf are the names that a node affinity allows.
func nodesOf(affinity any) string {
	if affinity == nil {
		return "any node with GPUs"
	}
	return brief(affinity)
}

// brief shows a value in one line: of a map or list the values that it has.
func brief(value any) string {
	switch value := value.(type) {
	case nil:
		return none
	case map[string]any:
		return briefMap(value)
	case keyedList:
		return briefMap(value)
	case []any:
		parts := make([]string, len(value))
		for i, element := range value {
			parts[i] = brief(element)
		}
		return strings.Join(parts, ", ")
	case string:
		return value
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}

func briefMap(value map[string]any) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(value)) {
		parts = append(parts, brief(value[key]))
	}
	return strings.Join(parts, " ")
}

func storageMode(set *appsv1.StatefulSet) string {
	if len(set.Spec.VolumeClaimTemplates) > 0 {
		return string(cluster.NodeStorage)
	}
	return string(cluster.SharedStorage)
}

// dropClaims leaves out the volumes that follow from the storage mode.
func dropClaims(spec map[string]any) {
	spec["volumeClaimTemplates"] = keyedList{}
	volumes := spec["template"].(map[string]any)["spec"].(map[string]any)["volumes"].(keyedList)
	maps.DeleteFunc(volumes, func(_ string, volume any) bool {
		_, isClaim := volume.(map[string]any)["persistentVolumeClaim"]
		return isClaim
	})
}
