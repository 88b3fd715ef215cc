// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// table prints objects of one kind as `oc get` does.
type table[T runtime.Object] struct {
	columns []string
	row     func(obj T) []any
}

func ageOf(d time.Duration) string { return duration.HumanDuration(d) }

// ConvertToTable implements rest.TableConvertor.
func (t table[T]) ConvertToTable(_ context.Context, obj runtime.Object, options runtime.Object) (*metav1.Table, error) {
	result := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		for _, name := range t.columns {
			format := ""
			if name == "Name" {
				format = "name"
			}
			result.ColumnDefinitions = append(result.ColumnDefinitions, metav1.TableColumnDefinition{Name: name, Type: "string", Format: format})
		}
	}
	add := func(one T) {
		result.Rows = append(result.Rows, metav1.TableRow{Cells: t.row(one), Object: runtime.RawExtension{Object: one}})
	}
	if one, ok := obj.(T); ok {
		add(one)
		if m, err := meta.Accessor(obj); err == nil {
			result.ResourceVersion = m.GetResourceVersion()
		}
		return result, nil
	}
	for _, one := range itemsOf[T](obj) {
		add(one)
	}
	if m, err := meta.ListAccessor(obj); err == nil {
		result.ResourceVersion, result.Continue = m.GetResourceVersion(), m.GetContinue()
		result.RemainingItemCount = m.GetRemainingItemCount()
	}
	return result, nil
}

func buildConfigTable() table[*buildv1.BuildConfig] {
	return table[*buildv1.BuildConfig]{
		columns: []string{"Name", "Type", "From", "Latest"},
		row: func(c *buildv1.BuildConfig) []any {
			return []any{c.Name, string(c.Spec.Strategy.Type), string(c.Spec.Source.Type), c.Status.LastVersion}
		},
	}
}

func buildTable() table[*buildv1.Build] {
	return table[*buildv1.Build]{
		columns: []string{"Name", "Type", "From", "Status", "Started", "Duration"},
		row: func(b *buildv1.Build) []any {
			status := string(b.Status.Phase)
			if b.Status.Reason != "" {
				status += " (" + string(b.Status.Reason) + ")"
			}
			started, took := "", ""
			if b.Status.StartTimestamp != nil {
				started = since(*b.Status.StartTimestamp)
			}
			if b.Status.Duration > 0 {
				took = b.Status.Duration.Round(time.Second).String()
			}
			return []any{b.Name, string(b.Spec.Strategy.Type), string(b.Spec.Source.Type), status, started, took}
		},
	}
}

func imageStreamTable() table[*imagev1.ImageStream] {
	return table[*imagev1.ImageStream]{
		columns: []string{"Name", "Image Repository", "Tags", "Updated"},
		row: func(s *imagev1.ImageStream) []any {
			var tags []string
			var latest metav1.Time
			for _, tag := range s.Status.Tags {
				tags = append(tags, tag.Tag)
				if len(tag.Items) > 0 && latest.Before(&tag.Items[0].Created) {
					latest = tag.Items[0].Created
				}
			}
			return []any{s.Name, s.Status.DockerImageRepository, strings.Join(tags, ","), since(latest)}
		},
	}
}

func imageStreamTagTable() table[*imagev1.ImageStreamTag] {
	return table[*imagev1.ImageStreamTag]{
		columns: []string{"Name", "Image Reference", "Updated"},
		row: func(t *imagev1.ImageStreamTag) []any {
			return []any{t.Name, t.Image.DockerImageReference, since(t.CreationTimestamp)}
		},
	}
}

func imageTable() table[*imagev1.Image] {
	return table[*imagev1.Image]{
		columns: []string{"Name", "Image Reference"},
		row:     func(i *imagev1.Image) []any { return []any{i.Name, i.DockerImageReference} },
	}
}
