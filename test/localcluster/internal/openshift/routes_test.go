// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	routev1 "github.com/openshift/api/route/v1"
	routefake "github.com/openshift/client-go/route/clientset/versioned/fake"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func route(host, subdomain string) *routev1.Route {
	return &routev1.Route{
		ObjectMeta: metav1.ObjectMeta{Name: "jupyter", Namespace: "team"},
		Spec:       routev1.RouteSpec{Host: host, Subdomain: subdomain},
	}
}

func TestAdmitRoute(t *testing.T) {
	tests := []struct {
		name     string
		new, old *routev1.Route
		want     string
	}{
		{"no host", route("", ""), nil, `[{"op":"add","path":"/metadata/annotations","value":{"openshift.io/host.generated":"true"}},` +
			`{"op":"add","path":"/spec/host","value":"jupyter-team.apps.localcluster.local"}]`},
		{"a host of its own", route("a.example.org", ""), nil, ""},
		{"a subdomain", route("", "a"), nil, ""},
		{"a host left out later", route("", ""), route("b.example.org", ""), `[{"op":"add","path":"/spec/host","value":"b.example.org"}]`},
	}
	for _, test := range tests {
		request := &admissionv1.AdmissionRequest{Namespace: "team", Operation: admissionv1.Create}
		var err error
		if request.Object.Raw, err = json.Marshal(test.new); err != nil {
			t.Fatal(err)
		}
		if test.old != nil {
			request.Operation = admissionv1.Update
			if request.OldObject.Raw, err = json.Marshal(test.old); err != nil {
				t.Fatal(err)
			}
		}
		got, err := new(server).admitRoute(t.Context(), request)
		if diff := cmp.Diff(test.want, string(got)); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", test.name, err, diff)
		}
	}
}

// This test relies on the fake clientset only for storing objects.
func TestRoutesAreSaidToBeAdmitted(t *testing.T) {
	for want, r := range map[string]*routev1.Route{
		"a.example.org":                        route("a.example.org", ""),
		"sub.apps.localcluster.local":          route("", "sub"),
		"jupyter-team.apps.localcluster.local": route("", ""),
	} {
		client := routefake.NewSimpleClientset(r).RouteV1()
		admitter := routeAdmitter{clients: Clients{Routes: client}}
		if err := admitter.admit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		got, err := client.Routes("team").Get(t.Context(), "jupyter", metav1.GetOptions{})
		if err != nil || len(got.Status.Ingress) != 1 {
			t.Fatalf("%s: %v, %v", want, got, err)
		}
		ingress := got.Status.Ingress[0]
		if ingress.Host != want || ingress.Conditions[0].Type != routev1.RouteAdmitted || ingress.Conditions[0].Status != corev1.ConditionTrue {
			t.Errorf("ingress %+v, want %s admitted", ingress, want)
		}
		since := ingress.Conditions[0].LastTransitionTime
		if err := admitter.admit(t.Context(), got); err != nil || got.Status.Ingress[0].Conditions[0].LastTransitionTime != since {
			t.Errorf("%s: admitted twice (%v)", want, err)
		}
	}
}
