// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	buildclient "github.com/openshift/client-go/build/clientset/versioned"
	buildfake "github.com/openshift/client-go/build/clientset/versioned/fake"
	imagefake "github.com/openshift/client-go/image/clientset/versioned/fake"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

func useful(context.Context) error { return nil }

// site returns a namespace without the base's registry, and a builder in it.
type site struct {
	*builder
	log *bytes.Buffer
}

func newSite(t *testing.T, objects ...runtime.Object) *site {
	t.Helper()
	d, err := ReadDefinition("cpu", fstest.MapFS{"Dockerfile": {Data: []byte("ARG PIP_CERT\nFROM scratch\nARG PIP_CERT\nRUN true")}})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := NewRegistry(map[string]string{".dockerconfigjson": "{}"}, "")
	if err != nil {
		t.Fatal(err)
	}
	stream := &imagev1.ImageStream{ObjectMeta: metav1.ObjectMeta{Name: StreamName, Namespace: "ns"}}
	stream.Status.DockerImageRepository = "registry.svc:5000/ns/ml-dev-env"
	builds, images, core := []runtime.Object{}, []runtime.Object{stream}, []runtime.Object{}
	for _, object := range objects {
		switch object.(type) {
		case *buildv1.Build, *buildv1.BuildConfig:
			builds = append(builds, object)
		case *imagev1.ImageStreamTag:
			images = append(images, object)
		default:
			core = append(core, object)
		}
	}
	s := &site{log: &bytes.Buffer{}}
	s.builder = &builder{
		plan:       plan{namespace: "ns", flavour: d.Flavour, deadline: time.Minute},
		definition: d, trustedCA: "mlenv-trusted-ca", podTimeout: time.Minute, holder: "me", caller: "mine",
		builds: buildfake.NewClientset(builds...).BuildV1(), images: imagefake.NewClientset(images...).ImageV1(),
		kube: withBuilds(core...), registry: keys, enough: useful, needed: useful, log: slog.New(slog.NewTextHandler(s.log, nil)), now: time.Now,
	}
	return s
}

// withBuilds returns a cluster whose discovery lists the build APIs.
func withBuilds(objects ...runtime.Object) *kubefake.Clientset {
	cluster := kubefake.NewClientset(objects...)
	cluster.Resources = []*metav1.APIResourceList{{GroupVersion: buildv1.GroupVersion.String()}, {GroupVersion: imagev1.GroupVersion.String()}}
	return cluster
}

// prepared returns a site whose plan is known.
func prepared(t *testing.T, objects ...runtime.Object) *site {
	t.Helper()
	s := newSite(t, objects...)
	if _, err := s.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func tag(t *testing.T, labels map[string]string) *imagev1.ImageStreamTag {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"Config": map[string]any{"Labels": labels}})
	if err != nil {
		t.Fatal(err)
	}
	return &imagev1.ImageStreamTag{
		ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-env:cpu", Namespace: "ns"},
		Image: imagev1.Image{DockerImageReference: "127.0.0.1:1/ns/ml-dev-env@sha256:1",
			DockerImageMetadata: runtime.RawExtension{Raw: raw}},
	}
}

// TestBuilt: an image replaces a build only if its label names the same inputs.
func TestBuilt(t *testing.T) {
	s := prepared(t)
	same, without := s.inputs.fingerprint(), s.inputs.withoutBases()
	tests := []struct {
		name   string
		labels map[string]string
		change func(*site)
		want   bool
		says   string
	}{
		{"the same", map[string]string{inputsLabel: same}, func(*site) {}, true, ""},
		{"the same, forced", map[string]string{inputsLabel: same}, func(s *site) { s.force = true }, false, ""},
		{"others", map[string]string{inputsLabel: "sha256:0"}, func(*site) {}, false, "its folder or its arguments have changed"},
		{"somebody else's", nil, func(*site) {}, false, "was not built by ml-dev-env"},
		{"another base", map[string]string{inputsLabel: "sha256:0", inputsWithoutBasesLabel: without}, func(*site) {
		}, false, "The base has changed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := prepared(t)
			test.change(s)
			image, got := s.built(t.Context(), tag(t, test.labels))
			want := Image{URL: "127.0.0.1:1/ns/ml-dev-env:cpu", Digest: "sha256:1", Reference: "127.0.0.1:1/ns/ml-dev-env@sha256:1"}
			if got != test.want || got && image != want {
				t.Errorf("built: %v %+v, want %v", got, image, test.want)
			}
			if !strings.Contains(s.log.String(), test.says) {
				t.Errorf("log %q, want %q", s.log, test.says)
			}
		})
	}
}

func TestTrustedCAReachesTheBuild(t *testing.T) {
	filled := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mlenv-trusted-ca", Namespace: "ns"},
		Data: map[string]string{"ca-bundle.crt": "x"}}
	s := prepared(t, filled)
	if s.trust != "mlenv-trusted-ca" || len(s.passing) != 1 || s.passing[0] != (Arg{"PIP_CERT", trustedCA}) {
		t.Errorf("trust %q, arguments %v; want the ConfigMap, and the one ARG that the Dockerfile has", s.trust, s.passing)
	}
	empty := filled.DeepCopy()
	empty.Data = nil
	if s := prepared(t, empty); s.trust != "" || len(s.passing) != 0 {
		t.Errorf("an empty ConfigMap: trust %q, arguments %v", s.trust, s.passing)
	}
}

// TestJoin: the step follows a running build of the same inputs, and also one that another caller has just claimed.
func TestJoin(t *testing.T) {
	plan := prepared(t).plan
	config := &buildv1.BuildConfig{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-env-cpu", Namespace: "ns"}}
	config.Spec.Output.ImageLabels = []buildv1.ImageLabel{{Name: inputsLabel, Value: plan.inputs.fingerprint()}}
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-env-cpu-1", Namespace: "ns", UID: "1", CreationTimestamp: metav1.Now(),
		Labels: map[string]string{buildv1.BuildConfigLabel: "ml-dev-env-cpu"}}}
	build.Spec.Output = config.Spec.Output
	build.Status.Phase = buildv1.BuildPhaseRunning
	t.Run("it runs", func(t *testing.T) {
		got, started, err := prepared(t, config, build).joinOrStart(t.Context())
		if err != nil || started != nil || got.Name != build.Name {
			t.Errorf("join: %v, started %v, %v", got, started, err)
		}
	})
	for name, at := range map[string]time.Duration{"another call of the same user claims it": -time.Second,
		"the clock of another call is ahead": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			claimed := config.DeepCopy()
			text, err := json.Marshal(claim{made: plan.inputs.made(), Holder: "me", Caller: "another", At: time.Now().Add(at)})
			if err != nil {
				t.Fatal(err)
			}
			claimed.Annotations = map[string]string{claimAnnotation: string(text)}
			failed := startedBy("another", build) // it may have ended in the meantime
			failed.Status.Phase = buildv1.BuildPhaseFailed
			got, started, err := prepared(t, claimed, failed).joinOrStart(t.Context())
			if err != nil || started != nil || got.Name != build.Name {
				t.Errorf("join: %v, started %v, %v", got, started, err)
			}
		})
	}
	t.Run("the claimed build was cancelled", func(t *testing.T) {
		cancelled := startedBy("another", build)
		cancelled.Status.Cancelled = true
		other := claim{made: plan.inputs.made(), Caller: "another", At: time.Now()}
		if got, err := prepared(t, cancelled).awaitClaimed(t.Context(), other, time.Hour); got != nil || err != nil {
			t.Errorf("got %v, %v, want nil at once", got, err)
		}
	})
}

// startedBy returns a copy of the build as the caller would have started it.
func startedBy(caller string, build *buildv1.Build) *buildv1.Build {
	made := build.DeepCopy()
	made.Spec.Revision = &buildv1.SourceRevision{Git: &buildv1.GitSourceRevision{Commit: caller}}
	return made
}

func answer(t *testing.T, w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(object); err != nil {
		t.Error(err)
	}
}

// TestStartFindsItsOwnBuild: another caller starts a build of the same inputs at the same time.
func TestStartFindsItsOwnBuild(t *testing.T) {
	s := prepared(t)
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-env-cpu-1", Namespace: "ns", UID: "1"}}
	build.Spec.Output.ImageLabels = []buildv1.ImageLabel{{Name: inputsLabel, Value: s.inputs.fingerprint()}}
	own := startedBy(s.caller, build)
	own.Name, own.UID, own.TypeMeta = "ml-dev-env-cpu-2", "2", metav1.TypeMeta{Kind: "Build", APIVersion: "build.openshift.io/v1"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var object any = buildv1.BuildList{TypeMeta: metav1.TypeMeta{Kind: "BuildList", APIVersion: "build.openshift.io/v1"},
			Items: []buildv1.Build{*startedBy("another", build), *own}}
		if strings.HasSuffix(r.URL.Path, "/instantiatebinary") {
			if got := r.URL.Query().Get("revision.commit"); got != s.caller {
				t.Errorf("revision.commit is %q, want the caller %q", got, s.caller)
			}
			object = own
		}
		answer(t, w, http.StatusOK, object)
	}))
	defer server.Close()
	client, err := buildclient.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	s.builds = client.BuildV1()
	got, started, err := s.start(t.Context())
	if err != nil || got.Name != own.Name {
		t.Fatalf("got %v, %v, want build %s", got, err, own.Name)
	}
	<-started.ended
	if started.err != nil {
		t.Error(started.err)
	}
}

func TestResult(t *testing.T) {
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns"}}
	build.Status.OutputDockerImageReference = "registry.svc:5000/ns/ml-dev-env:cpu"
	build.Status.Output.To = &buildv1.BuildStatusOutputTo{ImageDigest: "sha256:2"}
	got, err := prepared(t, build).result(t.Context(), "b")
	if want := (Image{"registry.svc:5000/ns/ml-dev-env:cpu", "sha256:2", "registry.svc:5000/ns/ml-dev-env@sha256:2", false}); got != want ||
		err != nil {
		t.Errorf("result %+v (%v), want %+v", got, err, want)
	}
	build.Status.Output.To = nil // the documentation allows it
	got, err = prepared(t, build, tag(t, nil)).result(t.Context(), "b")
	if want := (Image{"127.0.0.1:1/ns/ml-dev-env:cpu", "sha256:1", "127.0.0.1:1/ns/ml-dev-env@sha256:1", false}); got != want || err != nil {
		t.Errorf("result of a build without a digest %+v (%v), want the tag's, %+v", got, err, want)
	}
}

// TestCheckSaysEveryMistake: one mistake does not hide another one.
func TestCheckSaysEveryMistake(t *testing.T) {
	images := fstest.MapFS{"cpu/Dockerfile": {Data: []byte("ARG BASE_IMAGE=a\nFROM ${BASE_IMAGE}\nARG MIRROR")}}
	var out bytes.Buffer
	code := command.Run(t.Context(), Command(images), []string{
		"--cluster-file=../../../clusters/local.yaml", "--build-timeout=-1s", "--build-args=X", "--env=Y", "--image=a", "--folder=b",
		"--training-timeout=-1s", "--run-name=r",
	}, &out, &out)
	for _, want := range []string{`--build-timeout "-1s": want a duration`, `--training-timeout "-1s": want a duration`, `--env "Y"`,
		"want one of them", "--run-name and --run-uid"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
	if code != command.WrongUsage {
		t.Errorf("exit code %d, want %d", code, command.WrongUsage)
	}
	file, err := clusterfile.Load(t.Context(), "../../../clusters/local.yaml", kube.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Cluster: file, Timeout: 1, BuildArgs: []string{"MIROR=x"}}
	if err := o.Check(images); err == nil ||
		!strings.Contains(err.Error(), "build argument MIROR: the Dockerfile of cpu has no such ARG; it has BASE_IMAGE, MIRROR") {
		t.Errorf("an unused argument: %v", err)
	}
	o = Options{Cluster: file, Timeout: 1, Image: "a"}
	if asked, err := o.request(images); asked.definition != nil || err != nil || o.Check(images) != nil {
		t.Errorf("a finished image: %v, %v; want nothing to build", asked.definition, err)
	}
}

func TestLastBuilt(t *testing.T) {
	made := tag(t, nil)
	images := imagefake.NewClientset(made).ImageV1()
	_, flavour, _ := strings.Cut(made.Name, ":")
	image, err := LastBuilt(t.Context(), images, made.Namespace, flavour)
	if err != nil || image.Reference != made.Image.DockerImageReference {
		t.Errorf("got %v, %v; want %s", image, err, made.Image.DockerImageReference)
	}
	_, err = LastBuilt(t.Context(), images, made.Namespace, "other")
	if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), made.Namespace+"/ml-dev-env:other") {
		t.Errorf("a flavour that was never built: got %v", err)
	}
}

// TestNoOtherTaskNeedsTheImage: preflight has found a mistake. The run ends at once with preflight's reason.
func TestNoOtherTaskNeedsTheImage(t *testing.T) {
	task := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r-preflight",
		OwnerReferences: []metav1.OwnerReference{run.OwnerReference("r", "uid")},
		Labels:          map[string]string{"tekton.dev/pipelineRun": "r", "tekton.dev/pipelineTask": "preflight"}}}
	task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse})
	task.Status.Results = []v1.TaskRunResult{{Name: "reason", Value: *v1.NewStructuredValues("ScriptNotFound")},
		{Name: "message", Value: *v1.NewStructuredValues("checking script: it is not there")}}
	o := Options{Run: run.Flags{Name: "r", UID: "uid"}}
	clients := &kube.Clients{Tekton: tektonfake.NewSimpleClientset(task), Namespace: "ns"}
	needed := func(ctx context.Context) error { return o.needed(ctx, clients) }
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns"}}
	build.Status.Phase = buildv1.BuildPhaseRunning
	check := func(doing string, err error) {
		t.Helper()
		if fail.ReasonOf(err) != fail.ScriptNotFound || !command.Printed(err) {
			t.Errorf("%s: got %v, want preflight's failure, which is printed already", doing, err)
		}
	}
	s := newSite(t, build)
	s.needed = needed
	_, err := s.run(t.Context())
	check("before a build", err)
	if builds, err := s.builds.Builds("ns").List(t.Context(), metav1.ListOptions{}); err != nil || len(builds.Items) != 1 {
		t.Errorf("%d builds, %v; want no new one", len(builds.Items), err)
	}
	_, _, err = s.wait(t.Context(), build, nil, &logFollower{out: io.Discard})
	check("during a build", err)
	task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionTrue})
	for _, tekton := range []*tektonfake.Clientset{tektonfake.NewSimpleClientset(), tektonfake.NewSimpleClientset(task)} {
		if err := o.needed(t.Context(), &kube.Clients{Tekton: tekton, Namespace: "ns"}); err != nil {
			t.Errorf("got %v, want to build", err)
		}
	}
}
