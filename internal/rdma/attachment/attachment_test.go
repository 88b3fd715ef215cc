// SPDX-License-Identifier: Apache-2.0

package attachment

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestOverlaps(t *testing.T) {
	var definitions []Definition
	for _, one := range [][2]string{
		{"a", `{"ipam":{"range":"10.0.103.0/24"}}`}, {"b", `{"ipam":{"range":"10.0.104.0/24"}}`},
		{"c", `{"ipam":{"range":"10.0.103.200-10.0.103.210/24"}}`}, {"d", `{}`},
	} {
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": one[1]}}}
		object.SetNamespace("default")
		object.SetName(one[0])
		object.SetAnnotations(map[string]string{ResourceAnnotation: "openshift.io/" + one[0]})
		d := Read(object)
		if d.Resource != "openshift.io/"+one[0] {
			t.Errorf("resource %q", d.Resource)
		}
		definitions = append(definitions, d)
	}
	want := []string{"attachments default/a (10.0.103.0/24) and default/c (10.0.103.200 to 10.0.103.210 of 10.0.103.0/24) overlap"}
	if diff := cmp.Diff(want, Overlaps(definitions)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Subnets of different lengths overlap too.
func TestOverlapOfWiderSubnet(t *testing.T) {
	read := func(config string) Definition {
		ranges, _, _ := RangesOf(config)
		return Definition{Ranges: ranges}
	}
	wide, narrow := read(`{"ipam":{"range":"10.0.0.0/16"}}`), read(`{"ipam":{"range":"10.0.103.0/24"}}`)
	if !wide.Overlaps(narrow) || !narrow.Overlaps(wide) || narrow.Overlaps(read(`{"ipam":{"range":"10.1.0.0/16"}}`)) {
		t.Error("10.0.103.0/24 overlaps with 10.0.0.0/16 and not with 10.1.0.0/16")
	}
}
