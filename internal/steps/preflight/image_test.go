// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

func TestImage(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/training"
	tag, err := name.NewTag(repository + ":1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, empty.Image); err != nil {
		t.Fatal(err)
	}
	asked, err := buildimage.NewRegistry(map[string]string{".dockerconfigjson": "{}"}, "")
	if err != nil {
		t.Fatal(err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	tests := []struct {
		name, image, flavour string
		want                 Status
		reason               fail.Reason
	}{
		{"there", repository + ":1", "", OK, ""},
		{"not there", repository + ":2", "", Blocked, fail.ImageUnavailable},
		{"no answer", strings.TrimPrefix(gone.URL, "http://") + "/training:1", "", Unknown, ""},
		{"to be built", "", "cpu", OK, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w, file := cairo(t)
			report := w.examine(file, agent.Auto, func(d *Deps, o *Options) {
				o.Request.Image, o.Flavour, d.Registry = test.image, test.flavour, asked
			})
			for _, check := range report.Checks {
				if check.Object == "image" && (check.Status != test.want || check.Reason != test.reason) {
					t.Errorf("got %+v, want %s %s", check, test.want, test.reason)
				}
			}
		})
	}
}

// TestImageOfAnotherNamespace: an image stream of another namespace needs a right of the account that pulls, which preflight asks for
// before any node is held.
func TestImageOfAnotherNamespace(t *testing.T) {
	const other = "image-registry.openshift-image-registry.svc:5000/shared/train:1"
	const grant = "oc policy add-role-to-group system:image-puller system:serviceaccounts:"
	for _, test := range []struct {
		name      string
		forbidden []string
		inCluster bool
		change    func(*Options)
		object    string
		want      Status
	}{
		{"allowed", nil, true, func(o *Options) { o.Request.Image = other }, "image", OK},
		{"refused", []string{"get imagestreams/layers"}, true, func(o *Options) { o.Request.Image = other }, "image", Blocked},
		{"refused, by a digest and another port", []string{"get imagestreams/layers"}, true,
			func(o *Options) {
				o.Request.Image = "image-registry.openshift-image-registry.svc.cluster.local/shared/train@sha256:" + strings.Repeat("a", 64)
			}, "image", Blocked},
		{"refused, with a Secret", []string{"get imagestreams/layers"}, true, func(o *Options) {
			o.Request.Image, o.Request.Cluster.Image.PullSecret = other, "mine"
		}, "image", Warning},
		{"asked in that namespace only", []string{"get imagestreams/layers", "create subjectaccessreviews"}, true,
			func(o *Options) { o.Request.Image = other }, "image", Blocked},
		{"not answered, and the step may not", []string{"get imagestreams/layers", "create subjectaccessreviews",
			"create localsubjectaccessreviews"}, true,
			func(o *Options) { o.Request.Image = other }, "image", Warning},
		{"not answered on a laptop", []string{"get imagestreams/layers", "create subjectaccessreviews", "create localsubjectaccessreviews"},
			false,
			func(o *Options) { o.Request.Image = other }, "image", Unknown},
		{"the steps", []string{"get imagestreams/layers"}, true, func(o *Options) { o.Request.StepsImage = other }, "steps image", Blocked},
		{"a base", []string{"get imagestreams/layers"}, true, func(o *Options) { o.Flavour, o.Request.Cluster.Image.Base = "cpu", other },
			"base image", Blocked},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, file := cairo(t)
			w.forbidden = test.forbidden
			report := w.examine(file, agent.Auto, func(d *Deps, o *Options) {
				d.Clients.InCluster = test.inCluster
				test.change(o)
			})
			for _, check := range report.Checks {
				if check.Object != test.object || !strings.Contains(check.Seen, "namespace shared") {
					continue
				}
				wants := test.want != OK
				if check.Status != test.want || (check.Reason == fail.ImageUnavailable) != (test.want == Blocked || check.Reason != "") ||
					wants != (check.Next == grant+file.Cluster.Namespace+" -n shared") {
					t.Errorf("got %+v, want %s, and the right as the next step: %t", check, test.want, wants)
				}
				return
			}
			t.Errorf("no check of %s in:\n%s", test.object, print(report))
		})
	}
	w, file := cairo(t)
	own := strings.Replace(other, "/shared/", "/"+file.Cluster.Namespace+"/", 1)
	report := w.examine(file, agent.Auto, func(_ *Deps, o *Options) { o.Request.Image = own })
	if text := print(report); strings.Contains(text, "image-puller") || strings.Contains(text, "is an image of namespace") {
		t.Errorf("an image of the run's own namespace is examined too:\n%s", text)
	}
}

// TestUserWithoutConstraints: where OpenShift chooses no user, an image that may run as root is found before the kubelet refuses it.
func TestUserWithoutConstraints(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/training"
	for tag, user := range map[string]string{"root": "", "zero": "0", "named": "mlenv", "numeric": "1001:0"} {
		image, err := mutate.Config(empty.Image, v1.Config{User: user})
		if err != nil {
			t.Fatal(err)
		}
		named, err := name.NewTag(repository + ":" + tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(named, image); err != nil {
			t.Fatal(err)
		}
	}
	asked, err := buildimage.NewRegistry(map[string]string{".dockerconfigjson": "{}"}, "")
	if err != nil {
		t.Fatal(err)
	}
	notRoot := corev1.PodSecurityContext{RunAsNonRoot: new(true)}
	for _, tc := range []struct {
		tag      string
		context  corev1.PodSecurityContext
		building bool
		want     Status
	}{
		{"root", notRoot, false, Blocked},
		{"zero", notRoot, false, Blocked},
		{"named", notRoot, false, Blocked},
		{"numeric", notRoot, false, Warning},
		{"missing", notRoot, false, Warning},
		{"root", notRoot, true, Warning},
		{"root", corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(1001))}, false, OK},
		{"root", corev1.PodSecurityContext{}, false, OK},
	} {
		p := &probe{Deps: Deps{Registry: asked}, building: tc.building}
		p.Request.Image = repository + ":" + tc.tag
		got := p.user(t.Context(), "security", &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &tc.context}})
		if got.Status != tc.want || (got.Status != OK) != strings.Contains(got.Next, "security.run_as_user") {
			t.Errorf("%s, %+v: got %+v, want %s", tc.tag, tc.context, got, tc.want)
		}
	}
}
