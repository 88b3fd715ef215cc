package admin

import (
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/install"
)

// settled is true for an object that is shared with others, as those of
// oc adm policy add-scc-to-user are, and that has what is wanted: it is left alone.
// Where it has not, the others' subjects are added to what is wanted, for applying
// replaces the list.
func settled(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured) (bool, error) {
	if !strings.HasPrefix(object.GetName(), roleOf("")) {
		return false, nil
	}
	live, err := install.Live(ctx, client, object)
	if err != nil || live == nil {
		return false, err
	}
	if object.GetKind() != "RoleBinding" {
		return difference(live, object) == "", nil
	}
	if hasSubjects(live, object) {
		return true, nil
	}
	subjects := subjectsOf(live)
	for _, subject := range subjectsOf(object) {
		if !hasSubject(subjects, subject) {
			subjects = append(subjects, subject)
		}
	}
	return false, unstructured.SetNestedSlice(object.Object, subjects, "subjects")
}

func subjectsOf(binding *unstructured.Unstructured) []any {
	subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects")
	return subjects
}

// hasSubjects is true where all of want's are among the live binding's.
func hasSubjects(live, want *unstructured.Unstructured) bool {
	have := subjectsOf(live)
	return !slices.ContainsFunc(subjectsOf(want), func(subject any) bool { return !hasSubject(have, subject) })
}

func hasSubject(subjects []any, wanted any) bool {
	return slices.ContainsFunc(subjects, func(subject any) bool { return covers(subject, wanted, "") == "" })
}

func sortedKeys(fields map[string]any) []string { return slices.Sorted(maps.Keys(fields)) }
