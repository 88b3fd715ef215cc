// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	buildfake "github.com/openshift/client-go/build/clientset/versioned/fake"
	imagefake "github.com/openshift/client-go/image/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildstatus"
)

// dockerBuildOf returns a build of namespace team in a phase, and a controller whose fake clients have the build and
// the objects.
func dockerBuildOf(phase buildv1.BuildPhase, objects ...runtime.Object) (*buildv1.Build, *controller) {
	b := build(1, buildv1.BuildRunPolicyParallel, phase)
	b.Namespace, b.UID = "team", "1"
	b.Spec.ServiceAccount = buildapi.BuilderAccount
	b.Spec.Strategy.DockerStrategy = &buildv1.DockerBuildStrategy{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: buildapi.BuilderAccount}}
	return &b, &controller{recorder: record.NewFakeRecorder(9), Clients: buildapi.Clients{
		Builds: buildfake.NewClientset(&b).BuildV1(), Images: imagefake.NewClientset(&imagev1.ImageStream{}).ImageV1(),
		Kube: kubefake.NewClientset(append(objects, account)...),
	}}
}

// look makes the controller handle the build once, and returns the build's status.
func look(t *testing.T, c *controller, b *buildv1.Build) buildv1.BuildStatus {
	t.Helper()
	if err := c.handleBuild(t.Context(), b.Namespace, b.Name); err != nil {
		t.Fatal(err)
	}
	latest, err := c.Builds.Builds(b.Namespace).Get(t.Context(), b.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return latest.Status
}

// TestOutOfMemoryInTwoSteps tests that the builder's own reason comes first, and then the pod's reason with the rest of
// the status.
func TestOutOfMemoryInTwoSteps(t *testing.T) {
	report := buildstatus.Report{Reason: buildv1.StatusReasonDockerBuildFailed, LogTail: "killed"}
	pod := podIn(corev1.PodFailed, exited(1, "OOMKilled", string(report.Encode(4096))))
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: "team", Name: "app-1-build",
		OwnerReferences: []metav1.OwnerReference{{Kind: "Build", UID: "1"}}}
	b, c := dockerBuildOf(buildv1.BuildPhaseRunning, pod)
	if got := look(t, c, b); got.Phase != buildv1.BuildPhaseFailed || got.Reason != report.Reason || got.CompletionTimestamp != nil ||
		got.LogSnippet != "" {
		t.Errorf("first: %+v, want the builder's reason alone", got)
	}
	if got := look(t, c, b); got.Reason != buildv1.StatusReasonOutOfMemoryKilled || got.CompletionTimestamp == nil ||
		got.LogSnippet != "killed" {
		t.Errorf("then: %+v, want OutOfMemoryKilled and the rest", got)
	}
}

func TestMissingResources(t *testing.T) {
	b, c := dockerBuildOf(buildv1.BuildPhaseNew)
	b.Spec.Strategy.DockerStrategy.Volumes = []buildv1.BuildVolume{
		{
			Source: buildv1.BuildVolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}}}},
		{Source: buildv1.BuildVolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}},
	}
	if _, err := c.Builds.Builds("team").Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, want := look(t, c, b), "These resources do not exist: ConfigMaps [ca] Secrets [key]"; got.Phase != buildv1.BuildPhaseFailed ||
		got.Message != want {
		t.Errorf("%s: %q, want Failed: %q", got.Phase, got.Message, want)
	}
}

func TestExpand(t *testing.T) {
	variables := []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "$(A) $(C) $$(A) $A"}}
	expand(variables)
	if diff := cmp.Diff("1 $(C) $(A) $A", variables[1].Value); diff != "" {
		t.Error(diff)
	}
}
