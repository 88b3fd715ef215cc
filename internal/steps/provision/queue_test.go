// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"net/http/httptest"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
	"github.com/ml-dev-env/ml-dev-env/test/kueuetest"
)

// TestRackLevel: a template that changes frees the pods that wait, so only a new environment, or one in another queue, gets the
// level that the queue has now.
func TestRackLevel(t *testing.T) {
	version := kueuetest.Versions[len(kueuetest.Versions)-1]
	server := httptest.NewServer(version.Handler(version.Queue([]string{"block", "rack", corev1.LabelHostname})))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	live := func(queue, level string) *appsv1.StatefulSet {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{kueue.QueueLabel: queue}}}
		if level != "" {
			metav1.SetMetaDataAnnotation(&set.Spec.Template.ObjectMeta, kueue.TopologyAnnotation, level)
		}
		return set
	}
	for _, test := range []struct {
		what  string
		queue string
		live  *appsv1.StatefulSet
		want  string
	}{
		{"a new environment", "team-a", nil, "rack"},
		{"no queue", "", nil, ""},
		{"an existing one", "team-a", live("team-a", "block"), "block"},
		{"an existing one without a level", "team-a", live("team-a", ""), ""},
		{"an existing one of another queue", "team-a", live("team-b", "block"), "rack"},
	} {
		p := &provisioner{clients: &kube.Clients{Kube: client}, request: objects.Request{Namespace: "ml", Queue: test.queue}}
		if got := p.rackLevel(t.Context(), test.live); got != test.want {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
}
