// SPDX-License-Identifier: Apache-2.0

package images

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const flavours = "../../tasks/mlenv-build-image/images"

// folders has the folders of the flavours, by name.
func folders(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(flavours, "*", "Dockerfile"))
	if err != nil || len(files) == 0 {
		t.Fatalf("looking for flavours: %d found, %v", len(files), err)
	}
	found := map[string]string{}
	for _, file := range files {
		found[filepath.Base(filepath.Dir(file))] = filepath.Dir(file)
	}
	return found
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// lines returns the lines of a file of packages, without comments.
func lines(content string) []string {
	var found []string
	for line := range strings.Lines(content) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			found = append(found, line)
		}
	}
	return found
}

// TestGPUFlavoursAreAlike: the GPU flavours differ only in versions that their bases require.
func TestGPUFlavoursAreAlike(t *testing.T) {
	for _, name := range []string{"build-packages", "packages", "requirements.txt", "requirements-llamafactory.txt"} {
		if read(t, flavours, "pytorch-2.9-numpy2", name) != read(t, flavours, "pytorch-2.8-numpy1", name) {
			t.Errorf("%s of pytorch-2.9-numpy2 and of pytorch-2.8-numpy1 differ: they must be copies of each other", name)
		}
	}
}

func TestDockerfiles(t *testing.T) {
	// Builds set these if they need them; a default would stay in the image.
	given := []string{
		"PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
		"PIP_INDEX_URL", "PIP_TRUSTED_HOST", "NPM_CONFIG_REGISTRY",
	}
	instruction := regexp.MustCompile(`(?m)^(ARG|FROM) .*$`)
	for name, folder := range folders(t) {
		t.Run(name, func(t *testing.T) {
			dockerfile := read(t, folder, "Dockerfile")
			first := instruction.FindAllString(dockerfile, 2)
			if len(first) != 2 || !strings.HasPrefix(first[0], "ARG BASE_IMAGE=") || !strings.HasPrefix(first[1], "FROM ${BASE_IMAGE}") {
				t.Errorf("the first instructions are %q; want ARG BASE_IMAGE=..., FROM ${BASE_IMAGE}", first)
			}
			for _, arg := range given {
				if !regexp.MustCompile(`(?m)^ARG ` + arg + `$`).MatchString(dockerfile) {
					t.Errorf("no ARG %s without a default", arg)
				}
				if regexp.MustCompile(`(?m)^(ENV|ARG) (.* )?` + arg + `=`).MatchString(dockerfile) {
					t.Errorf("%s is set; it would stay in the image", arg)
				}
			}
			if strings.Contains(dockerfile, "NCCL_") {
				t.Error("an NCCL setting is baked in: devices and fabrics differ between clusters")
			}
			commands := lines(dockerfile)
			last := commands[len(commands)-2:]
			if !strings.Contains(last[0], "base.py verify") || !regexp.MustCompile(`^USER [1-9]\d*:0$`).MatchString(last[1]) {
				t.Errorf("the last steps are %q; want base.py verify, and a user whose number the kubelet sees is not root", last)
			}
		})
	}
}

// TestNoHiddenFiles: programs embed the folders, and go:embed skips names that start with . or _.
func TestNoHiddenFiles(t *testing.T) {
	all := folders(t)
	all["common"] = filepath.Join(flavours, "common")
	for name, folder := range all {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if strings.ContainsAny(entry.Name()[:1], "._") || entry.IsDir() {
				t.Errorf("%s/%s: want only plain files, with names that do not start with . or _", name, entry.Name())
			}
			if strings.Contains(read(t, folder, entry.Name()), "\r") {
				t.Errorf("%s/%s has carriage returns: the image's shell would fail on them", name, entry.Name())
			}
		}
	}
}
