// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParseNetworks(t *testing.T) {
	for annotation, want := range map[string][]network{
		"":                             nil,
		"default/eno5np0-network, own": {{"eno5np0-network", "default"}, {"own", "here"}},
		"default/eno5np0-network@net1": {{"eno5np0-network", "default"}},
		`[{"name":"a"},{"name":"b","namespace":"default"}]`: {{"a", "here"}, {"b", "default"}},
	} {
		if diff := cmp.Diff(want, parseNetworks(annotation, "here")); diff != "" {
			t.Errorf("%q (-want +got):\n%s", annotation, diff)
		}
	}
}

func TestResourcePatch(t *testing.T) {
	had := corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("2"), "openshift.io/a": resource.MustParse("5")}}
	got, err := resourcePatch(had, map[corev1.ResourceName]int64{"openshift.io/a": 1})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"op":"add","path":"/spec/containers/0/resources/requests","value":{"openshift.io/a":"1"}},` +
		`{"op":"add","path":"/spec/containers/0/resources/limits","value":{"cpu":"2","openshift.io/a":"1"}}]`
	if string(got) != want {
		t.Errorf("patch %s\nwant  %s", got, want)
	}
	if got, err := resourcePatch(had, nil); got != nil || err != nil {
		t.Errorf("without resources the patch is %s, %v; want none", got, err)
	}
}
