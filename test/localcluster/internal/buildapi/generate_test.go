// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	buildv1 "github.com/openshift/api/build/v1"
	buildfake "github.com/openshift/client-go/build/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	kubefake "k8s.io/client-go/kubernetes/fake"
)

func config() *buildv1.BuildConfig {
	return &buildv1.BuildConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team", UID: "1"},
		Spec: buildv1.BuildConfigSpec{
			RunPolicy: buildv1.BuildRunPolicySerial,
			CommonSpec: buildv1.CommonSpec{
				Source: buildv1.BuildSource{Type: buildv1.BuildSourceBinary, Binary: &buildv1.BinaryBuildSource{}},
				Strategy: buildv1.BuildStrategy{DockerStrategy: &buildv1.DockerBuildStrategy{
					BuildArgs: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
				}},
			},
		},
		Status: buildv1.BuildConfigStatus{LastVersion: 3},
	}
}

func TestGenerate(t *testing.T) {
	build, err := generate(config(), &buildv1.BuildRequest{
		Binary:                &buildv1.BinaryBuildSource{},
		Revision:              &buildv1.SourceRevision{Git: &buildv1.GitSourceRevision{Commit: "c"}},
		Env:                   []corev1.EnvVar{{Name: "E", Value: "x"}},
		DockerStrategyOptions: &buildv1.DockerStrategyOptions{BuildArgs: []corev1.EnvVar{{Name: "B", Value: "3"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if build.Name != "app-3" || build.Annotations[buildv1.BuildNumberAnnotation] != "3" || build.Spec.ServiceAccount != "builder" {
		t.Errorf("name %s, annotations %v, service account %s", build.Name, build.Annotations, build.Spec.ServiceAccount)
	}
	owners := build.OwnerReferences
	if len(owners) != 1 || owners[0].Kind != "BuildConfig" || owners[0].UID != "1" || owners[0].BlockOwnerDeletion != nil {
		t.Errorf("owners %v", owners)
	}
	docker := build.Spec.Strategy.DockerStrategy
	if diff := cmp.Diff([]corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "3"}}, docker.BuildArgs); diff != "" {
		t.Error(diff)
	}
	if len(docker.Env) != 1 || build.Spec.Source.Binary == nil || build.Spec.Revision.Git.Commit != "c" {
		t.Errorf("env %v, source %v, revision %v", docker.Env, build.Spec.Source, build.Spec.Revision)
	}
	if c := build.Status.Conditions; len(c) != 1 || c[0].Type != "New" || c[0].Status != corev1.ConditionTrue {
		t.Errorf("conditions %v, want New", c)
	}
	if problems := validateBuild(build); problems != nil {
		t.Error(problems)
	}
}

// TestMissingAccount tests that the server answers with an internal error as OpenShift does, and creates no Build.
func TestMissingAccount(t *testing.T) {
	builds := buildfake.NewClientset(config()).BuildV1()
	_, err := Instantiator{Builds: builds, Kube: kubefake.NewClientset()}.Instantiate(t.Context(), "team",
		&buildv1.BuildRequest{ObjectMeta: metav1.ObjectMeta{Name: "app"}})
	const want = `error getting push/pull secrets for service account team/builder: serviceaccounts "builder" not found`
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an internal error with %q", err, want)
	}
	if made, err := builds.Builds("team").List(t.Context(), metav1.ListOptions{}); err != nil || len(made.Items) > 0 {
		t.Errorf("builds %v, %v; want none", made, err)
	}
}

// TestBuildThatDoesNotRun tests that the server cancels a binary build that no pod runs, and answers the sender.
func TestBuildThatDoesNotRun(t *testing.T) {
	builds := buildfake.NewClientset(config()).BuildV1()
	objects := kubefake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder", Namespace: "team"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Annotations: map[string]string{StartTimeAnnotation: "50ms"}}})
	r := binaryREST{instantiator: Instantiator{Builds: builds, Kube: objects}, kube: objects}
	_, err := r.build(genericapirequest.WithNamespace(t.Context(), "team"), "app", "", strings.NewReader("folder"))
	if !apierrors.IsBadRequest(err) ||
		!strings.Contains(err.Error(), "unable to wait for build app-4 to run: timed out waiting for the condition") {
		t.Errorf("got %v, want a bad request, because the time has expired", err)
	}
	build, err := builds.Builds("team").Get(t.Context(), "app-4", metav1.GetOptions{})
	if err != nil || !build.Status.Cancelled {
		t.Errorf("build %+v, %v; want it cancelled", build, err)
	}
}

func TestABinarySourceThatIsNotSent(t *testing.T) {
	build, err := generate(config(), &buildv1.BuildRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if problems := validateBuild(build); len(problems) != 1 || problems[0].Field != "spec.source" {
		t.Errorf("problems %v, want one of spec.source", problems)
	}
}

func TestUnimplementedSourcesAreRefused(t *testing.T) {
	for name, change := range map[string]func(*buildv1.BuildConfig){
		"git": func(c *buildv1.BuildConfig) {
			c.Spec.Source.Git = &buildv1.GitBuildSource{URI: "https://example.com/r"}
		},
		"context": func(c *buildv1.BuildConfig) { c.Spec.Source.ContextDir = "a" },
		"base image": func(c *buildv1.BuildConfig) {
			c.Spec.Strategy.DockerStrategy.From = &corev1.ObjectReference{Kind: "DockerImage", Name: "b"}
		},
		"no cache": func(c *buildv1.BuildConfig) { c.Spec.Strategy.DockerStrategy.NoCache = true },
	} {
		refused := config()
		refused.Spec.RunPolicy = buildv1.BuildRunPolicySerial
		if problems := validateBuildConfig(refused); problems != nil {
			t.Fatalf("without %s: %v", name, problems)
		}
		change(refused)
		if problems := validateBuildConfig(refused); len(problems) != 1 {
			t.Errorf("%s: %v, want one problem", name, problems)
		}
	}
}

func TestValidateBuildUpdate(t *testing.T) {
	old, err := generate(config(), &buildv1.BuildRequest{Binary: &buildv1.BinaryBuildSource{}})
	if err != nil {
		t.Fatal(err)
	}
	cancelled := old.DeepCopy()
	cancelled.Status.Cancelled = true
	if problems := validateBuildUpdate(cancelled, old); problems != nil {
		t.Errorf("cancelling: %v", problems)
	}
	changed := old.DeepCopy()
	changed.Spec.Source.ContextDir = "other"
	if problems := validateBuildUpdate(changed, old); len(problems) != 1 {
		t.Errorf("changing the spec: %v", problems)
	}
	old.Status.Phase = buildv1.BuildPhaseComplete
	if problems := validateBuildUpdate(cancelled, old); len(problems) != 1 {
		t.Errorf("leaving a last phase: %v", problems)
	}
}

func TestDefaultsAndTypes(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := config()
	c.Spec.RunPolicy = ""
	scheme.Default(c)
	if c.Spec.RunPolicy != buildv1.BuildRunPolicySerial || *c.Spec.FailedBuildsHistoryLimit != 5 ||
		c.Spec.Strategy.Type != buildv1.DockerBuildStrategyType {
		t.Errorf("defaults: %+v", c.Spec)
	}
}

func TestLogQuery(t *testing.T) {
	query, err := url.ParseQuery("follow&tailLines=3&timestamps=false&nowait=true")
	if err != nil {
		t.Fatal(err)
	}
	var got buildv1.BuildLogOptions
	if err := readLogOptions(query, &got); err != nil {
		t.Fatal(err)
	}
	three := int64(3)
	if diff := cmp.Diff(buildv1.BuildLogOptions{Follow: true, NoWait: true, TailLines: &three}, got); diff != "" {
		t.Error(diff)
	}
	if err := readLogOptions(url.Values{"tailLines": {"x"}}, &got); err == nil {
		t.Error("tailLines=x was accepted")
	}
}
