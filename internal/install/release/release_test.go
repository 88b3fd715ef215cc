// SPDX-License-Identifier: Apache-2.0

package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

func TestCheckVersion(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.2.3": true, "v0.0.0-try": true, "v1.2.3-rc.1": true,
		"": false, "1.2.3": false, "v1.2": false, "v01.2.3": false, "v1.2.3+build": false, "v1.2.3-": false, "main": false,
	} {
		if err := CheckVersion(version); (err == nil) != want {
			t.Errorf("version %q: %v, want it accepted: %v", version, err, want)
		}
	}
}

func TestSection(t *testing.T) {
	const changelog = "# Changelog\n\n## [Unreleased]\n\n## [1.1.0] - 2026-02-01\n\n### Added\n\n- More.\n\n## [1.0.0] - " +
		"2026-01-01\n\n- All.\n\n## [0.9.0] - 2025-12-01\n\n- Some.\n\n[Unreleased]: https://example/compare\n[1.1.0]: https://example/1.1.0\n" +
		"[1.0.0]: https://example/1.0.0\n"
	tests := []struct{ heading, want, fails string }{
		{heading: "[1.1.0]", want: "### Added\n\n- More.\n"},
		{heading: "[1.0.0]", want: "- All.\n"},
		{heading: "[0.9.0]", fails: "the heading ## [0.9.0] is no link"},
		{heading: "[Unreleased]", fails: "nothing is below ## [Unreleased]"},
		{heading: "[2.0.0]", fails: "the heading ## [2.0.0] is missing"},
	}
	for _, test := range tests {
		got, err := section(changelog, test.heading)
		if got != test.want || (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %q, %v: want %q, %q", test.heading, got, err, test.want, test.fails)
		}
	}
}

// TestChangelog: a snapshot's notes are the unreleased changes.
func TestChangelog(t *testing.T) {
	if _, err := (Request{Source: bundle.Source{Dir: "../../.."}, Snapshot: true}).notes(); err != nil {
		t.Error(err)
	}
}

func TestWriteInstall(t *testing.T) {
	image, err := name.NewDigest("registry.example/steps@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	r := &Release{request: Request{Source: bundle.Source{Dir: "../../.."}, To: t.TempDir()}, StepsImage: image}
	if err := r.writeInstall(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(r.request.To, installFile))
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	count := map[string]int{}
	for document := range strings.SplitSeq(text, "---\n") {
		for line := range strings.SplitSeq(document, "\n") {
			if kind, ok := strings.CutPrefix(line, "kind: "); ok {
				count[kind]++
			}
		}
	}
	for kind, want := range map[string]int{"Namespace": 1, "Task": 7, "Pipeline": 2, "CronJob": 1, "ServiceAccount": 2, "Role": 2,
		"RoleBinding": 2} {
		if count[kind] != want {
			t.Errorf("%d of kind %s, want %d", count[kind], kind, want)
		}
	}
	if strings.Contains(text, "registry.invalid") || strings.Count(text, image.Name()) != 10 {
		t.Errorf("the image is named %d times, want each Task and Pipeline, and the reaper, to name it", strings.Count(text, image.Name()))
	}
	if strings.Contains(text, "name: mlenv-cluster-default\n") {
		t.Error("the manifest has a cluster file, which only the user can write")
	}
}

func TestEmptyFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dist")
	if err := emptyFolder(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := emptyFolder(dir); err == nil || !strings.Contains(err.Error(), "mine") {
		t.Errorf("got %v, want what is in it named", err)
	}
}
