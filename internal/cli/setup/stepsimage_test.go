// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestBaseIsKos: an image that the cluster builds stands on the base of the one that ko builds.
func TestBaseIsKos(t *testing.T) {
	config, err := os.ReadFile("../../../.ko.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := "defaultBaseImage: " + stepsBase + "\n"; !strings.Contains(string(config), want) {
		t.Errorf(".ko.yaml lacks %q", want)
	}
}

// TestFindStepsImage tests which image an installation takes that names none, in a dry run. The end-to-end tests build it.
func TestFindStepsImage(t *testing.T) {
	const released, built = "ghcr.io/ml-dev-env/steps@sha256:0123", "registry/team/ml-dev-env@sha256:4567"
	const tagged = "image-registry.openshift-image-registry.svc:5000/team/ml-dev-env:mlenv-steps"
	for name, test := range map[string]struct {
		released         string
		builds, pullable bool
		built, want      string
		reason           fail.Reason
	}{
		"main":                        {builds: true, want: tagged},
		"main, built before":          {builds: true, built: built, want: built},
		"main, no builds":             {reason: fail.BuildUnavailable},
		"a release":                   {released: released, builds: true, pullable: true, want: released},
		"a release, no builds":        {released: released, want: released},
		"a release that is not there": {released: released, builds: true, want: tagged},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answer := func(object any) { _ = json.NewEncoder(w).Encode(object) }
				switch {
				case !test.builds:
					http.NotFound(w, r)
				case r.URL.Path == "/apis/build.openshift.io/v1":
					answer(map[string]string{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "build.openshift.io/v1"})
				case strings.HasSuffix(r.URL.Path, "/imagestreamimports"):
					status := imagev1.ImageImportStatus{}
					status.Status.Message = "no route to host"
					if test.pullable {
						status.Image = &imagev1.Image{}
						status.Image.Name = "sha256:0123"
					}
					answer(imagev1.ImageStreamImport{Status: imagev1.ImageStreamImportStatus{Images: []imagev1.ImageImportStatus{status}}})
				case strings.HasSuffix(r.URL.Path, "/imagestreamtags/ml-dev-env:mlenv-steps") && test.built != "":
					answer(imagev1.ImageStreamTag{Image: imagev1.Image{DockerImageReference: test.built}})
				default:
					w.WriteHeader(http.StatusNotFound)
					answer(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})
				}
			}))
			defer server.Close()
			config := &rest.Config{Host: server.URL}
			clients := &kube.Clients{Kube: kubernetes.NewForConfigOrDie(config), Config: config, Namespace: "team"}
			pipeline, err := mldevenv.Bundle.ReadFile("pipelines/train-multi-node/train-multi-node.yaml")
			if err != nil {
				t.Fatal(err)
			}
			text := string(pipeline)
			if test.released != "" {
				text = strings.ReplaceAll(text, "registry.invalid/ml-dev-env/steps:0.1.0", test.released)
			}
			s := stepsImage{files: fstest.MapFS{"pipelines/train-multi-node/train-multi-node.yaml": {Data: []byte(text)}},
				log: slog.New(slog.DiscardHandler), base: stepsBase}
			got, err := s.findImage(t.Context(), clients, cluster.File{}, true)
			if got != test.want || fail.ReasonOf(err) != test.reason && test.reason != "" || test.reason == "" && err != nil {
				t.Errorf("got %q, %v; want %q, %s", got, err, test.want, test.reason)
			}
		})
	}
}

// TestPlatformOf: only mlenv for Linux becomes the steps image.
func TestPlatformOf(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		text: "it is not a Go program", filepath.Join(dir, "missing"): "no such file",
		self: "internal/cli/setup.test: want that of " + mlenvPackage,
	} {
		if _, err := platformOf(program); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", program, err, want)
		}
	}
	// A small program of mlenv's package, for each platform.
	module := filepath.Join(dir, "module")
	for name, content := range map[string]string{
		"go.mod": "module github.com/ml-dev-env/ml-dev-env\n\ngo 1.26\n", "cmd/mlenv/main.go": "package main\n\nfunc main() {}\n",
	} {
		path := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for system, want := range map[string]string{"linux/amd64": "linux/amd64", "darwin/amd64": ""} {
		goos, goarch, _ := strings.Cut(system, "/")
		built := filepath.Join(dir, goos)
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", built, "./cmd/mlenv")
		cmd.Dir, cmd.Env = module, append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got, err := platformOf(built); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v", system, got, err)
		}
	}
}
