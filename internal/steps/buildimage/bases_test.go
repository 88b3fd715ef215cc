// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"strings"
	"testing"
	"testing/fstest"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	imagefake "github.com/openshift/client-go/image/clientset/versioned/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// TestBaseDigest: laptop and cluster ask the API server, whatever login they have themselves.
func TestBaseDigest(t *testing.T) {
	host, digest := serve(t)
	const internal = "image-registry.openshift-image-registry.svc:5000/shared/base:1"
	stream := &imagev1.ImageStreamTag{ObjectMeta: metav1.ObjectMeta{Name: "base:1", Namespace: "shared"},
		Image: imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "sha256:5"}}}
	for _, test := range []struct {
		name, base string
		answer     func(*imagev1.ImageStreamImport) error
		want, says string
	}{
		{"the API server knows it", host + "/team/image:1", func(asked *imagev1.ImageStreamImport) error {
			asked.Status.Images = []imagev1.ImageImportStatus{{Image: &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "sha256:7"}}}}
			return nil
		}, "sha256:7", ""},
		{"an image stream", internal, nil, "sha256:5", ""},
		{"its registry refuses", host + "/team/image:1", func(asked *imagev1.ImageStreamImport) error {
			asked.Status.Images = []imagev1.ImageImportStatus{{Status: metav1.Status{Message: "you may not have access to it"}}}
			return nil
		}, "", "you may not have access to it"},
		{"no right to import", host + "/public/image:1", func(*imagev1.ImageStreamImport) error {
			return apierrors.NewForbidden(imagev1.Resource("imagestreamimports"), "", nil)
		}, "", "forbidden"},
	} {
		s := prepared(t)
		images := imagefake.NewClientset(stream)
		images.PrependReactor("create", "imagestreamimports", func(action clienttesting.Action) (bool, runtime.Object, error) {
			asked := action.(clienttesting.CreateAction).GetObject().(*imagev1.ImageStreamImport).DeepCopy()
			if image := asked.Spec.Images[0]; asked.Spec.Import || image.From.Name != test.base || image.To != nil ||
				image.ImportPolicy.ImportMode != imagev1.ImportModePreserveOriginal {
				t.Errorf("%s: asked %+v, want %s with import false and PreserveOriginal", test.name, asked.Spec, test.base)
			}
			err := test.answer(asked)
			return true, asked, err
		})
		s.images = images.ImageV1()
		got, err := s.baseDigest(t.Context(), test.base)
		if got != test.want || (err == nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %q, %v; want %q", test.name, got, err, test.want)
		}
	}
	// Without the API the step's own login counts.
	s := prepared(t)
	keys, err := NewRegistry(map[string]string{".dockerconfigjson": `{"auths":{"` + host + `":{"username":"me","password":"secret"}}}`}, "")
	if err != nil {
		t.Fatal(err)
	}
	s.registry = keys
	if got, err := s.baseDigest(t.Context(), host+"/team/image:1"); got != digest || err != nil {
		t.Errorf("by the step's own login: %q, %v; want %s", got, err, digest)
	}
}

func on(base, digest string) inputs {
	return inputs{Strategy: "Docker", Dockerfile: "FROM " + base, Bases: map[string]string{base: digest, "pinned@sha256:3": "sha256:3"}}
}

// TestUnknownBase: a build on a laptop without a login does not know the digest of its base, and the run after it does, or the other
// way round. They build the same.
func TestUnknownBase(t *testing.T) {
	for _, test := range []struct {
		name          string
		mine, theirs  inputs
		same, unknown bool
	}{
		{"the same", on("r:5000/a:1", "sha256:1"), on("r:5000/a:1", "sha256:1"), true, false},
		{"known after unknown", on("r:5000/a:1", "sha256:1"), on("r:5000/a:1", ""), true, true},
		{"unknown after known", on("r:5000/a:1", ""), on("r:5000/a:1", "sha256:1"), true, true},
		{"both unknown", on("r:5000/a:1", ""), on("r:5000/a:1", ""), true, false},
		{"another digest", on("r:5000/a:1", "sha256:1"), on("r:5000/a:1", "sha256:2"), false, false},
		{"another base", on("r:5000/a:1", ""), on("r:5000/a:2", ""), false, false},
	} {
		unknown, same := test.mine.unknownBases(test.theirs.made())
		if same != test.same || len(unknown) > 0 != test.unknown {
			t.Errorf("%s: same %t, unknown %v", test.name, same, unknown)
		}
	}
	if (inputs{}).buildsTheSame(made{}) {
		t.Error("an image without labels is taken for ours")
	}
}

// TestRunAfterALaptop: a run finds the image that mlenv build has built without a login, and follows such a build.
func TestRunAfterALaptop(t *testing.T) {
	laptop, run := on("r:5000/a:1", ""), on("r:5000/a:1", "sha256:1")
	labelsOf := func(in inputs) []buildv1.ImageLabel {
		return []buildv1.ImageLabel{
			{Name: inputsLabel, Value: in.fingerprint()}, {Name: inputsWithoutBasesLabel, Value: in.withoutBases()}, {Name: baseDigestsLabel,
				Value: in.basesText()},
		}
	}
	labels := labelsOf(laptop)
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-env-cpu-1", Namespace: "ns", UID: "1", CreationTimestamp: metav1.Now(),
		Labels: map[string]string{buildv1.BuildConfigLabel: "ml-dev-env-cpu"}}}
	build.Spec.Output.ImageLabels, build.Status.Phase = labels, buildv1.BuildPhaseRunning
	config := &buildv1.BuildConfig{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-env-cpu", Namespace: "ns"}}
	config.Spec.Output.ImageLabels = labelsOf(run)
	s := prepared(t, config, build)
	s.inputs = run
	got, started, err := s.joinOrStart(t.Context())
	if err != nil || started != nil || got.Name != build.Name {
		t.Errorf("a run during the build: %v, started %v, %v; want to follow %s", got, started, err, build.Name)
	}
	recorded := map[string]string{}
	for _, label := range labels {
		recorded[label.Name] = label.Value
	}
	if _, ok := s.built(t.Context(), tag(t, recorded)); !ok || !strings.Contains(s.log.String(),
		"Whether r:5000/a:1 has changed since ml-dev-env:cpu was built is unknown") {
		t.Errorf("a run after the build: found %t, log %s; want it found", ok, s.log)
	}
}

// TestTags: only a build of the cluster file's flavour takes its tag.
func TestTags(t *testing.T) {
	images := fstest.MapFS{"cpu/Dockerfile": {Data: []byte("ARG BASE_IMAGE=a\nFROM ${BASE_IMAGE}\nARG MIRROR\nARG X")},
		"gpu/Dockerfile": {Data: []byte("FROM a\nARG MIRROR")}}
	folder, named := t.TempDir(), t.TempDir()
	for _, dir := range []string{folder, named} {
		writeFile(t, dir+"/Dockerfile", "FROM a\nARG X")
	}
	file := Options{}.Cluster
	file.Image.Flavour, file.Image.BuildArgs = "cpu", []string{"MIRROR=m"}
	tagOf := func(o Options) string {
		t.Helper()
		o.Cluster = file
		r, err := o.request(images)
		if err != nil {
			t.Fatal(err)
		}
		p := plan{flavour: r.definition.Flavour, variant: r.variant, varies: r.varies}
		if (p.varies == "") != (p.imageTag() == p.flavour) {
			t.Errorf("tag %s, because %q", p.imageTag(), p.varies)
		}
		if to := p.buildConfig().Spec.Output.To.Name; to != StreamName+":"+p.imageTag() {
			t.Errorf("the build pushes to %s, want tag %s", to, p.imageTag())
		}
		return p.imageTag()
	}
	for name, o := range map[string]Options{
		"cpu": {}, "gpu": {Flavour: "gpu", BuildArgs: []string{"MIRROR=m"}}, "mine": {Folder: folder, Flavour: "mine",
			BuildArgs: []string{"X=1"}},
	} {
		if got := tagOf(o); got != name {
			t.Errorf("%+v has tag %s, want %s", o, got, name)
		}
	}
	seen := map[string]int{"cpu": 0}
	for i, o := range []Options{
		{BuildArgs: []string{"X=1"}}, {BuildArgs: []string{"X=2"}}, {Base: "b"}, {Env: []string{"X=1"}}, {BuildArgs: []string{"MIRROR=other"}},
		{Folder: named, Flavour: "cpu"},
	} {
		got := tagOf(o)
		if other, taken := seen[got]; taken || !strings.HasPrefix(got, "cpu-") || got != tagOf(o) {
			t.Errorf("options %d have tag %s, those of %d; want one of their own, always the same", i+1, got, other)
		}
		seen[got] = i + 1
	}
}
