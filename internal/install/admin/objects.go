package admin

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// OwnSCC is the security context constraint that this package creates.
const OwnSCC = "mlenv-rdma"

const (
	sccGroup    = "security.openshift.io"
	sccResource = "securitycontextconstraints"

	memlockFile   = "/etc/crio/crio.conf.d/99-memlock"
	iommuArgument = "iommu=pt"
)

// objectsFile has a template for the objects of each item.
//
//go:embed objects.yaml
var objectsFile string

func memlockName(pool string) string { return "99-" + pool + "-crio-memlock" }
func iommuName(pool string) string   { return "99-" + pool + "-iommu-passthrough" }

// roleOf is the name of the ClusterRole and the RoleBinding that oc adm policy add-scc-to-user creates.
func roleOf(scc string) string { return "system:openshift:scc:" + scc }

func (r Request) objects(item string) []*unstructured.Unstructured {
	var text strings.Builder
	err := template.Must(template.New("objects.yaml").Parse(objectsFile)).ExecuteTemplate(&text, item, map[string]any{
		"Namespace": r.Namespace, "ServiceAccount": r.ServiceAccount, "SCC": r.scc(), "Role": roleOf(r.scc()), "Drop": objects.RootsOwn(),
		"Pool": r.Pool, "Memlock": memlockName(r.Pool), "MemlockFile": memlockFile, "IOMMU": iommuName(r.Pool), "IOMMUArgument": iommuArgument,
	})
	if err != nil {
		panic(err) // the templates are part of the program
	}
	var rendered []*unstructured.Unstructured
	for document := range strings.SplitSeq(text.String(), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			panic(err) // every name is quoted
		}
		rendered = append(rendered, object)
	}
	return rendered
}

func named(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// difference is the first path at which the live value lacks what want has, or "". Fields that want does not
// have may hold anything; null in want means that the live object must not have the field. Lists are compared whole.
func difference(live, want any, path string) string {
	switch want := want.(type) {
	case map[string]any:
		have, _ := live.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if found := difference(have[key], want[key], path+"."+key); found != "" {
				return found
			}
		}
		return ""
	case []any:
		have, _ := live.([]any)
		if len(have) != len(want) {
			return path
		}
		for i := range want {
			if found := difference(have[i], want[i], fmt.Sprintf("%s[%d]", path, i)); found != "" {
				return found
			}
		}
		return ""
	}
	if fmt.Sprint(live) != fmt.Sprint(want) {
		return path
	}
	return ""
}

func missingSubjects(live, want *unstructured.Unstructured) []any {
	have := subjectsOf(live)
	return slices.DeleteFunc(subjectsOf(want), func(subject any) bool {
		return slices.ContainsFunc(have, func(other any) bool { return difference(other, subject, "") == "" })
	})
}

func subjectsOf(binding *unstructured.Unstructured) []any {
	subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects")
	return subjects
}
