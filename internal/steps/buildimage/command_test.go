// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// TestChainsHints: Tekton Chains signs the image that IMAGE_URL and IMAGE_DIGEST name as the work of the TaskRun, which must be true.
func TestChainsHints(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, test := range map[string]struct {
		image Image
		url   string
	}{
		"built":                    {Image{"registry/a:cpu", digest, "registry/a@" + digest, true}, "registry/a:cpu"},
		"built, URL with digest":   {Image{"registry/a@" + digest, digest, "registry/a@" + digest, true}, "registry/a"},
		"existed":                  {Image{"registry/a:cpu", digest, "registry/a@" + digest, false}, ""},
		"built, digest is unknown": {Image{"registry/a:cpu", "", "registry/a:cpu", true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, dir := &cobra.Command{}, t.TempDir()
			url, sum := command.NewResult(cmd, "IMAGE_URL", ""), command.NewResult(cmd, "IMAGE_DIGEST", "")
			flags := []string{"--IMAGE_URL-result=" + filepath.Join(dir, "url"), "--IMAGE_DIGEST-result=" + filepath.Join(dir, "digest")}
			if err := cmd.ParseFlags(flags); err != nil {
				t.Fatal(err)
			}
			if err := writeHints(test.image, url, sum); err != nil {
				t.Fatal(err)
			}
			want := ""
			if test.url != "" {
				want = digest
			}
			gotURL, _ := os.ReadFile(filepath.Join(dir, "url")) // missing if there is no hint
			gotSum, _ := os.ReadFile(filepath.Join(dir, "digest"))
			if string(gotURL) != test.url || string(gotSum) != want {
				t.Errorf("IMAGE_URL %q, IMAGE_DIGEST %q; want %q, %q", gotURL, gotSum, test.url, want)
			}
		})
	}
}

// A run with an image of its own built nothing.
func TestNoHintsForAGivenImage(t *testing.T) {
	images := fstest.MapFS{"cpu/Dockerfile": {Data: []byte("ARG BASE_IMAGE=a\nFROM ${BASE_IMAGE}")}}
	const image = "quay.io/me/mine@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	dir := t.TempDir()
	args := []string{"--cluster-file=../../../clusters/local.yaml", "--image=" + image}
	for _, result := range []string{"IMAGE_URL", "IMAGE_DIGEST", "image"} {
		args = append(args, "--"+result+"-result="+filepath.Join(dir, result))
	}
	var out bytes.Buffer
	if code := command.Run(t.Context(), Command(images), args, &out, &out); code != command.Done {
		t.Fatalf("exit code %d: %s", code, &out)
	}
	written, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range written {
		names = append(names, file.Name())
	}
	if got := strings.Join(names, " "); got != "image" {
		t.Errorf("results %q, want only image", got)
	}
}
