// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// Files of a run can be fetched after mlenv uninstall, which leaves claims and runs.
func TestStepsImage(t *testing.T) {
	spec := func(image string) v1.PipelineSpec {
		return v1.PipelineSpec{Params: v1.ParamSpecs{{Name: "steps-image", Type: v1.ParamTypeString, Default: v1.NewStructuredValues(image)}}}
	}
	installed := &v1.Pipeline{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: launch.Pipeline}, Spec: spec("installed")}
	run := func(name, image string, age time.Duration) *v1.PipelineRun {
		of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels:            map[string]string{"tekton.dev/pipeline": launch.Pipeline},
			CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
		if image != "" {
			of.Status.PipelineSpec = new(spec(image))
		}
		return of
	}
	for _, tc := range []struct {
		name    string
		objects []runtime.Object
		claim   Claim
		want    string
		reason  fail.Reason
	}{
		{"installed", []runtime.Object{installed, run("a", "old", time.Hour)}, Claim{}, "installed", ""},
		{"uninstalled", []runtime.Object{run("a", "old", 2*time.Hour), run("b", "newer", time.Hour), run("c", "", 0)}, Claim{}, "newer", ""},
		{"named", []runtime.Object{installed}, Claim{StepsImage: "mine"}, "mine", ""},
		{"nothing is left", nil, Claim{}, "", fail.InvalidInput},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clients := &kube.Clients{Kube: fake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(tc.objects...), Namespace: "ns"}
			got, err := stepsImage(t.Context(), clients, tc.claim)
			if got != tc.want || (err == nil) != (tc.reason == "") || err != nil && fail.ReasonOf(err) != tc.reason {
				t.Errorf("got %q, %v; want %q %s", got, err, tc.want, tc.reason)
			}
		})
	}
}
