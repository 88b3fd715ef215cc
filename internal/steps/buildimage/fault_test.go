// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

const (
	buildsPath = "/apis/build.openshift.io/v1/namespaces/ns"
	imagesPath = "/apis/image.openshift.io/v1/namespaces/ns"
	binaryPath = buildsPath + "/buildconfigs/ml-dev-env-cpu/instantiatebinary"
	testDigest = "sha256:2"
)

// openshift stands in for OpenShift's API server of builds and images, and for the builds' pods: a request with a folder creates the
// Build first and reads the folder then. A build whose folder does not arrive is cancelled, any other one completes after the answer.
type openshift struct {
	t      *testing.T
	server *apitest.Server

	mu    sync.Mutex
	begun int
}

func newOpenshift(t *testing.T) *openshift {
	own := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1", UID: "uid-1"}}
	own.Status.StartTime = new(metav1.Now())
	o := &openshift{t: t, server: apitest.Start(t, own)}
	o.server.Handle = o.handle
	o.server.Admit = func(path string, object apitest.Object) {
		if path == imagesPath+"/imagestreams/"+StreamName {
			object["status"] = apitest.Object{"dockerImageRepository": "registry.svc:5000/ns/ml-dev-env"}
		}
	}
	return o
}

func (o *openshift) handle(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case r.URL.Path == imagesPath+"/imagestreamimports":
		found := imagev1.ImageStreamImport{TypeMeta: metav1.TypeMeta{Kind: "ImageStreamImport", APIVersion: "image.openshift.io/v1"}}
		found.Status.Images = []imagev1.ImageImportStatus{{Image: &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "sha256:1"}}}}
		answer(o.t, w, http.StatusCreated, found)
	case r.URL.Path == binaryPath:
		o.build(w, r)
	case strings.HasSuffix(r.URL.Path, "/log"):
		fmt.Fprintln(w, "STEP 1/1: FROM scratch")
	default:
		return false
	}
	return true
}

func (o *openshift) build(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.begun++
	name := fmt.Sprintf("ml-dev-env-cpu-%d", o.begun)
	o.mu.Unlock()
	config := o.server.Get(buildsPath + "/buildconfigs/ml-dev-env-cpu")
	build := func(status apitest.Object) apitest.Object {
		return apitest.Object{
			"kind": "Build", "apiVersion": "build.openshift.io/v1",
			"metadata": apitest.Object{"name": name, "namespace": "ns", "labels": apitest.Object{buildv1.BuildConfigLabel: "ml-dev-env-cpu"}},
			"spec": apitest.Object{
				"output":   config["spec"].(apitest.Object)["output"],
				"revision": apitest.Object{"git": apitest.Object{"commit": r.URL.Query().Get("revision.commit")}},
			},
			"status": status,
		}
	}
	change := func(status apitest.Object) { o.server.Put(buildsPath+"/builds/"+name, build(status)) }
	change(apitest.Object{"phase": "Pending"})
	if _, err := io.ReadAll(r.Body); err != nil {
		change(apitest.Object{"phase": "Cancelled", "cancelled": true, "reason": "CancelledBuild"})
		return
	}
	change(apitest.Object{"phase": "Running"})
	answer(o.t, w, http.StatusCreated, build(apitest.Object{"phase": "Running"}))
	change(apitest.Object{
		"phase": "Complete", "outputDockerImageReference": "registry.svc:5000/ns/ml-dev-env:cpu",
		"output": apitest.Object{"to": apitest.Object{"imageDigest": testDigest}},
	})
}

// run runs the step in a PipelineRun.
func (o *openshift) run(wrap func(http.RoundTripper) http.RoundTripper) (Image, error) {
	o.t.Helper()
	clients := o.server.Clients(wrap)
	clients.InCluster = true
	keys, err := NewRegistry(map[string]string{corev1.DockerConfigJsonKey: "{}"}, "")
	if err != nil {
		o.t.Fatal(err)
	}
	noise := make([]byte, 1<<17)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	d := Deps{
		Connect: func() (*kube.Clients, *Registry, error) { return clients, keys, nil },
		Images:  fstest.MapFS{"cpu/Dockerfile": {Data: []byte("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN true")}, "cpu/noise": {Data: noise}},
		Log:     slog.New(slog.DiscardHandler), Out: io.Discard,
	}
	options := Options{
		Run: run.Flags{Name: "train-1", UID: "uid-1", Task: "build-image"}, Flavour: "cpu", Base: "quay.io/team/base:1",
		Cluster: cluster.File{}, Timeout: 10 * time.Minute, StartTimeout: time.Minute,
	}
	return Run(o.t.Context(), d, options)
}

// Whichever request to the API server fails once, and however, the image is built, once, and the step notes the same of it.
func TestEveryRequestMayFail(t *testing.T) {
	apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
		o := newOpenshift(t)
		image, err := o.run(wrap)
		memory, notRead := receipt.ReadJournal(t.Context(), o.server.Clients(nil).Kube, "ns", "train-1")
		text := fmt.Sprint(err, notRead, " ", image)
		if part := memory.EntryOf("build-image"); part != nil {
			text += fmt.Sprint(" ", part.Status, part.Reason, part.Image)
		}
		return text + "\n" + strings.Join(o.server.Paths(), " ")
	})
}

// A connection breaks in the middle of a folder. OpenShift cancels that build, and the step starts another one.
func TestFolderThatDoesNotArrive(t *testing.T) {
	o, sent := newOpenshift(t), 0
	image, err := o.run(func(next http.RoundTripper) http.RoundTripper {
		return faultyNetwork(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != binaryPath {
				return next.RoundTrip(r)
			}
			if sent++; sent == 1 {
				r = cutOff(r)
			}
			return next.RoundTrip(r)
		})
	})
	if err != nil || image.Digest != testDigest || sent != 2 {
		t.Errorf("got %+v, %v after %d requests; want the image of the second build", image, err, sent)
	}
	if o.begun != 2 {
		t.Errorf("%d builds, want a cancelled one and another one", o.begun)
	}
}

// A folder that never arrives is an error after some time.
func TestFolderThatNeverArrives(t *testing.T) {
	o, sent := newOpenshift(t), 0
	_, err := o.run(func(next http.RoundTripper) http.RoundTripper {
		return faultyNetwork(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != binaryPath {
				return next.RoundTrip(r)
			}
			sent++
			return next.RoundTrip(cutOff(r))
		})
	})
	if !errors.As(err, &notReceivedError{}) || sent != attempts {
		t.Errorf("got %v after %d requests; want what kept the folder from arriving after %d", err, sent, attempts)
	}
}

type faultyNetwork func(*http.Request) (*http.Response, error)

func (t faultyNetwork) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// cutOff returns a request whose body breaks off, after more than the client keeps back until the end.
func cutOff(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, 1<<16), broken{}))
	return r
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
