// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// Change is what a difference needs to take effect.
type Change string

// The changes, from the easiest to the hardest.
const (
	// Live takes effect at once.
	Live Change = "live"
	// Recreate takes effect for a node after its pod was deleted.
	Recreate Change = "recreate"
	// Immutable is refused: the StatefulSet must be deleted and created again.
	Immutable Change = "immutable"
)

// Difference is one thing in which a live environment differs from the wanted one.
type Difference struct {
	Path string
	What string
	// Old and New are the values, "none" for a missing one.
	Old, New string
	Change   Change
}

// String has the form "image: a -> b".
func (d Difference) String() string { return fmt.Sprintf("%s: %s -> %s", d.What, d.Old, d.New) }

// Differences returns what applying want would change in live, sorted by path. It compares only what Build sets: neither
// what the API server or others added, nor metadata and status.
func Differences(live, want *appsv1.StatefulSet) []Difference {
	c := comparison{}
	oldSpec, newSpec := specOf(live), specOf(want)
	if before, after := storageMode(live), storageMode(want); before != after {
		c.add("spec.volumeClaimTemplates", before, after)
		dropClaims(oldSpec)
		dropClaims(newSpec)
	}
	// Kueue adds these labels to a StatefulSet without them, if it is configured to.
	if queue := live.Labels[kueue.QueueLabel]; queue != kueue.DefaultQueue || want.Labels[kueue.QueueLabel] != "" {
		c.add("metadata.labels["+kueue.QueueLabel+"]", cmp.Or(queue, none), cmp.Or(want.Labels[kueue.QueueLabel], none))
	}
	if priority := want.Labels[kueue.PriorityLabel]; priority != "" {
		c.add("metadata.labels["+kueue.PriorityLabel+"]", cmp.Or(live.Labels[kueue.PriorityLabel], none), priority)
	}
	c.compare("spec", oldSpec, newSpec)
	slices.SortStableFunc(c.found, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return c.found
}

const none = "none"

// keyOf names the lists whose elements are compared by a key. Only Build adds elements to them, so an element that is
// not wanted is a difference.
var keyOf = map[string]string{
	"containers": "name", "initContainers": "name", "ports": "name", "volumes": "name", "volumeMounts": "mountPath", "env": "name",
	"volumeClaimTemplates": "name",
}

// specOf returns a StatefulSet's spec as nested maps. It has a value for everything that is set only if it is wanted, except the
// pull secrets that OpenShift creates for the service account: it may replace them at any time.
func specOf(set *appsv1.StatefulSet) map[string]any {
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&set.Spec)
	if err != nil {
		// Kubernetes' own types are JSON objects.
		panic(fmt.Sprintf("reading the spec of statefulset %s: %v", set.Name, err))
	}
	templates := []any{}
	for i, template := range list(spec["volumeClaimTemplates"]) {
		claim := template.(map[string]any)["spec"].(map[string]any)
		claim["name"] = set.Spec.VolumeClaimTemplates[i].Name
		templates = append(templates, claim)
	}
	spec["volumeClaimTemplates"] = templates
	pod := podOf(spec)
	nodes, found, _ := unstructured.NestedFieldNoCopy(pod, "affinity", "nodeAffinity")
	if !found {
		nodes = "any node with GPUs"
	}
	_ = unstructured.SetNestedField(pod, brief(nodes), "affinity", "nodeAffinity") // an affinity is an object
	pod["imagePullSecrets"] = brief(slices.DeleteFunc(list(pod["imagePullSecrets"]), func(ref any) bool {
		name, _ := ref.(map[string]any)["name"].(string)
		return strings.HasPrefix(name, set.Spec.Template.Spec.ServiceAccountName+"-dockercfg-")
	}))
	return spec
}

func podOf(spec map[string]any) map[string]any {
	return spec["template"].(map[string]any)["spec"].(map[string]any)
}

func list(value any) []any {
	items, _ := value.([]any)
	return items
}

func storageMode(set *appsv1.StatefulSet) string {
	if len(set.Spec.VolumeClaimTemplates) > 0 {
		return string(cluster.NodeStorage)
	}
	return string(cluster.SharedStorage)
}

func dropClaims(spec map[string]any) {
	spec["volumeClaimTemplates"] = []any{}
	pod := podOf(spec)
	pod["volumes"] = slices.DeleteFunc(list(pod["volumes"]), func(volume any) bool {
		return volume.(map[string]any)["persistentVolumeClaim"] != nil
	})
}

type comparison struct{ found []Difference }

// compare looks at every value that is wanted.
func (c *comparison) compare(path string, live, want any) {
	name := path[strings.LastIndex(path, ".")+1:]
	switch want := want.(type) {
	case map[string]any:
		old, _ := live.(map[string]any)
		if name == "requests" || name == "limits" {
			c.elements(path, old, want)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if want[key] != nil {
				c.compare(path+"."+key, old[key], want[key])
			}
		}
		return
	case []any:
		if key, ok := keyOf[name]; ok {
			c.elements(path, byKey(name, key, list(live)), byKey(name, key, want))
			return
		}
	}
	c.add(path, brief(live), brief(want))
}

func (c *comparison) elements(path string, live, want map[string]any) {
	all := maps.Clone(want)
	maps.Copy(all, live)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		at := path + "[" + key + "]"
		if live[key] != nil && want[key] != nil {
			c.compare(at, live[key], want[key])
		} else {
			c.add(at, brief(live[key]), brief(want[key]))
		}
	}
}

func byKey(name, key string, elements []any) map[string]any {
	result := map[string]any{}
	for _, element := range elements {
		element := element.(map[string]any)
		result[fmt.Sprint(element[key])] = element
		if name == "env" {
			result[fmt.Sprint(element[key])] = variableValue(element)
		}
	}
	return result
}

func variableValue(variable map[string]any) string {
	value, _ := variable["value"].(string)
	if from, ok := variable["valueFrom"].(map[string]any); ok {
		// The API server adds an apiVersion to the reference.
		field, _ := from["fieldRef"].(map[string]any)
		value = fmt.Sprintf("the pod's %v", field["fieldPath"])
	}
	return value
}

func (c *comparison) add(path, live, want string) {
	what := describePath(path)
	// GPUs are among the requests and the limits.
	if live != want && !slices.ContainsFunc(c.found, func(d Difference) bool { return d.What == what }) {
		c.found = append(c.found, Difference{Path: path, What: what, Old: live, New: want, Change: changeOf(path)})
	}
}

func changeOf(path string) Change {
	switch {
	case strings.HasPrefix(path, "spec.template"):
		return Recreate
	case strings.HasPrefix(path, "spec.replicas"), strings.HasPrefix(path, "spec.updateStrategy"),
		strings.HasPrefix(path, "spec.persistentVolumeClaimRetentionPolicy"):
		return Live
	}
	return Immutable
}

// brief returns a value in one line, without the keys of maps.
func brief(value any) string {
	switch value := value.(type) {
	case nil:
		return none
	case map[string]any:
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(value)) {
			parts = append(parts, brief(value[key]))
		}
		return strings.Join(parts, " ")
	case []any:
		if len(value) == 0 {
			return none
		}
		parts := make([]string, len(value))
		for i, element := range value {
			parts[i] = brief(element)
		}
		return strings.Join(parts, ", ")
	}
	return fmt.Sprint(value)
}

// phrases are paths in words; the first match counts.
var phrases = []struct {
	path  *regexp.Regexp
	words string
}{
	{regexp.MustCompile(`^metadata\.labels\[` + regexp.QuoteMeta(kueue.QueueLabel)), "queue"},
	{regexp.MustCompile(`^metadata\.labels\[` + regexp.QuoteMeta(kueue.PriorityLabel)), "priority in the queue"},
	{regexp.MustCompile(`\.annotations\.` + regexp.QuoteMeta(kueue.TopologyAnnotation)), "label of racks"},
	{regexp.MustCompile(`^spec\.replicas$`), "nodes"},
	{regexp.MustCompile(`^spec\.volumeClaimTemplates$`), "storage mode"},
	{regexp.MustCompile(`^spec\.volumeClaimTemplates\[(.*)\]\.resources\.requests\[storage\]$`), "size of claim $1"},
	{regexp.MustCompile(`^spec\.volumeClaimTemplates\[(.*)\]\.storageClassName$`), "storage class of claim $1"},
	{regexp.MustCompile(`\.containers\[train\]\.image$`), "image"},
	{regexp.MustCompile(`\.initContainers\[agent\]\.image$`), "steps image"},
	{regexp.MustCompile(`\.env\[(.*)\]$`), "variable $1"},
	{regexp.MustCompile(`\[train\]\.resources\.\w+\[nvidia\.com/gpu\]$`), "GPUs of a node"},
	{regexp.MustCompile(`\[train\]\.resources\.requests\[memory\]$`), "memory request"},
	{regexp.MustCompile(`\[train\]\.resources\.limits\[memory\]$`), "memory limit"},
	{regexp.MustCompile(`\[train\]\.resources\.requests\[cpu\]$`), "processor request"},
	{regexp.MustCompile(`\[train\]\.resources\.limits\[cpu\]$`), "processor limit"},
	{regexp.MustCompile(`\.volumes\[dev-shm\]\.emptyDir\.sizeLimit$`), "size of /dev/shm"},
	{regexp.MustCompile(`\.volumes\[trusted-ca\]`), "trusted CA"},
	{regexp.MustCompile(`\.volumes\[(.*)\]\.persistentVolumeClaim\.claimName$`), "claim of volume $1"},
	{regexp.MustCompile(`\.volumeMounts\[(.*)\]`), "mount at $1"},
	{regexp.MustCompile(`\.nodeAffinity$`), "allowed nodes"},
	{regexp.MustCompile(`\.tolerations$`), "tolerations"},
	{regexp.MustCompile(`\.imagePullSecrets$`), "pull secret"},
	{regexp.MustCompile(`\.serviceAccountName$`), "service account"},
}

func describePath(path string) string {
	for _, phrase := range phrases {
		if match := phrase.path.FindStringSubmatchIndex(path); match != nil {
			return string(phrase.path.ExpandString(nil, phrase.words, path, match))
		}
	}
	return path
}
