// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func read(t *testing.T, dockerfile string) *Definition {
	t.Helper()
	d, err := ReadDefinition("f", fstest.MapFS{"Dockerfile": {Data: []byte(dockerfile)}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestBases(t *testing.T) {
	tests := []struct {
		name, dockerfile string
		args             []Arg
		want             []string
	}{
		{"plain", "FROM debian:trixie\nRUN true", nil, []string{"debian:trixie"}},
		{"an argument's default", "ARG BASE_IMAGE=debian:trixie\nFROM ${BASE_IMAGE}", nil, []string{"debian:trixie"}},
		{"an argument given", "ARG BASE_IMAGE=debian:trixie\nFROM $BASE_IMAGE", []Arg{{"BASE_IMAGE", "ubuntu:24.04"}}, []string{"ubuntu:24.04"}},
		{"stages", "FROM golang:1.26 AS tools\nFROM tools AS more\nFROM debian:trixie\nCOPY --from=tools /a /a\nFROM scratch", nil,
			[]string{"golang:1.26", "debian:trixie"}},
		{"a default in quotes", "ARG BASE=\"debian:trixie\"\nFROM ${BASE}", nil, []string{"debian:trixie"}},
		{"a default that names another", "ARG CUDA=12.4\nARG BASE=nvidia/cuda:${CUDA}-devel\nFROM ${BASE}", []Arg{{"CUDA", "13.0"}},
			[]string{"nvidia/cuda:13.0-devel"}},
		{"a stage with a capital letter", "FROM debian:trixie AS Builder\nFROM Builder", nil, []string{"debian:trixie"}},
		{"a default of the expansion", "ARG TAG\nFROM debian:${TAG:-trixie}", nil, []string{"debian:trixie"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := read(t, test.dockerfile).BaseImages(test.args)
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("bases (-want +got):\n%s%v", diff, err)
			}
		})
	}
	if _, err := read(t, "ARG BASE\nFROM ${BASE}").BaseImages(nil); fail.ReasonOf(err) != fail.DockerfileInvalid {
		t.Errorf("a FROM without an image: %v, want DockerfileInvalid", err)
	}
}

func TestArgs(t *testing.T) {
	got := read(t, "ARG BASE=a\nFROM ${BASE}\nARG B=1 A\nRUN true\nARG BASE").ArgNames()
	if diff := cmp.Diff([]string{"A", "B", "BASE"}, got); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
}

func TestReadDefinitionErrors(t *testing.T) {
	tests := []struct {
		name, dockerfile string
		want             string
	}{
		{"an unknown instruction", "FROM a\n\nRUM true\n", "line 3: "},
		{"nothing", "# nothing\n", "file with no instructions"},
		{"a RUN in front of FROM", "RUN true\n", "line 1: "},
		{"a heredoc", "FROM a\nRUN true\nRUN <<EOF\ntrue\nEOF\n", "line 3: a heredoc (<<EOF)"},
		{"COPY --link", "FROM a\nCOPY --link x /x\n", "line 2: COPY --link: OpenShift's builds do not support it: want COPY without it"},
		{"COPY --link in a stage", "FROM a AS b\nFROM c\nCOPY --from=b \\\n  --link=true /x /x\n", "line 3: COPY --link"},
		{"COPY --parents", "# syntax=docker/dockerfile:1-labs\nFROM a\nCOPY --parents ./x/./y /z/\n", "line 3: COPY --parents"},
		{"ADD --link", "FROM a\nADD --link=TRUE https://example.com/x /x\n", "line 2: ADD --link"},
		{"ADD --keep-git-dir", "FROM a\nADD --keep-git-dir=true https://example.com/x.git /x\n", "want RUN git clone"},
		{"RUN --security", "FROM a\nRUN --security=insecure true\n", "line 2: RUN --security"},
		{"ONBUILD", "FROM a\nONBUILD COPY --link x /x\n", "line 2: COPY --link"},
		{"a heredoc of COPY", "FROM a\nCOPY <<x /x\ntext\nx\n", "line 2: a heredoc (<<x)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := ReadDefinition("f", fstest.MapFS{"Dockerfile": {Data: []byte(test.dockerfile)}})
			if fail.ReasonOf(err) != fail.DockerfileInvalid || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want DockerfileInvalid with %q", err, test.want)
			}
		})
	}
	for _, fine := range []string{"COPY --link=false x /x", "COPY --chmod=755 --chown=0:0 --exclude=*.md x /x",
		"RUN --mount=type=cache,target=/c --network=none true", `RUN echo "COPY --link"`} {
		if _, err := ReadDefinition("f", fstest.MapFS{"Dockerfile": {Data: []byte("FROM a\n" + fine + "\n")}}); err != nil {
			t.Errorf("%s: %v", fine, err)
		}
	}
	if _, err := ReadDefinition("f", fstest.MapFS{}); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("no Dockerfile: %v, want InvalidInput", err)
	}
}

// TestFolderDoesNotBlock: a FIFO in a user's folder is a mistake, and does not block the build.
func TestFolderDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "Dockerfile"), 0o600); err != nil {
		t.Fatal(err)
	}
	const timeForAnError = time.Minute // in which only a call that blocks returns none
	ended := make(chan error, 1)
	go func() {
		_, err := (&Options{Folder: dir}).definition(nil, "mine")
		ended <- err
	}()
	select {
	case err := <-ended:
		if fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("got %v, want InvalidInput", err)
		}
	case <-time.After(timeForAnError):
		t.Error("it blocks")
	}
}

func TestFindFlavour(t *testing.T) {
	images := fstest.MapFS{"cpu/Dockerfile": {Data: []byte("FROM a")}, "cpu/x": {}, "gpu/Dockerfile": {Data: []byte("FROM b")},
		"README.md": {}, "common/x": {Data: []byte("shared")}, "common/y": {Data: []byte("shared")}}
	d, err := FindFlavour(images, "cpu")
	if err != nil || d.Flavour != "cpu" {
		t.Fatalf("flavour %+v: %v", d, err)
	}
	got := map[string]string{}
	err = d.walk(func(path string, _ fs.FileInfo, _ string) error {
		var content strings.Builder
		err := d.copyFile(&content, path)
		got[path] = content.String()
		return err
	})
	if diff := cmp.Diff(map[string]string{"Dockerfile": "FROM a", "x": "", "y": "shared"}, got); diff != "" || err != nil {
		t.Errorf("context (-want +got): %v\n%s", err, diff)
	}
	_, err = FindFlavour(images, "cpv")
	if want := `looking for flavour "cpv": did you mean cpu? there are cpu, gpu`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestPack packs a real folder. The archive has its links, executable bits and empty folders, but not its .git.
func TestPack(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"Dockerfile": "FROM a", "sub/run.sh": "#!/bin/sh", ".git/config": "x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "sub/run.sh"), 0o700); err != nil { // as with umask 077
		t.Fatal(err)
	}
	if err := os.Symlink("sub/run.sh", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	d, err := ReadDefinition("f", os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := d.writeContext(&packed, inputs{Bases: map[string]string{"a": "sha256:1"}}); err != nil {
		t.Fatal(err)
	}
	zipped, err := gzip.NewReader(&packed)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%04o %s %s%s", header.Mode, header.Name, header.Linkname, content)))
	}
	want := []string{"0644 Dockerfile FROM a@sha256:1", "0777 link sub/run.sh", "0755 sub/", "0755 sub/run.sh #!/bin/sh"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
}

// TestPinned: the build gets each base by the digest that is in its fingerprint.
func TestPinned(t *testing.T) {
	const dockerfile = "# syntax\nARG BASE=r:5000/a:1\nFROM ${BASE} AS Tools\r\nFROM Tools AS more\n\n" +
		"from --platform=linux/amd64 debian:trixie@sha256:2 AS b\nFROM b\nFROM scratch\nFROM \\\n  c:1\nFROM unknown:1\nFROM $BASE\n"
	const want = "# syntax\nARG BASE=r:5000/a:1\nFROM r:5000/a@sha256:1 AS Tools\nFROM Tools AS more\n\n" +
		"FROM --platform=linux/amd64 debian@sha256:2 AS b\nFROM b\nFROM scratch\nFROM c@sha256:3\nFROM unknown:1\nFROM r:5000/a@sha256:1\n"
	d, err := ReadDefinition("f", fstest.MapFS{"Dockerfile": {Data: []byte(dockerfile)}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.pinned(inputs{Bases: map[string]string{"r:5000/a:1": "sha256:1", "debian:trixie@sha256:2": "sha256:2", "c:1": "sha256:3",
		"unknown:1": ""}})
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestFingerprint: everything that can change the image changes the fingerprint.
func TestFingerprint(t *testing.T) {
	folder := func() fstest.MapFS {
		return fstest.MapFS{"Dockerfile": {Data: []byte("ARG A\nFROM b")}, "x": {Data: []byte("x"), Mode: 0o644}}
	}
	of := func(change func(fstest.MapFS, *inputs)) inputs {
		context := folder()
		in := inputs{Strategy: "Docker", BuildArgs: []Arg{{"A", "1"}}, Env: []Arg{{"E", "1"}}, Bases: map[string]string{"b": "sha256:1"}}
		change(context, &in)
		d, err := ReadDefinition("f", context)
		if err != nil {
			t.Fatal(err)
		}
		in.Dockerfile = string(d.dockerfile)
		if in.Context, err = d.scanContext(); err != nil {
			t.Fatal(err)
		}
		return in
	}
	same := of(func(fstest.MapFS, *inputs) {})
	if again := of(func(fstest.MapFS, *inputs) {}); again.fingerprint() != same.fingerprint() {
		t.Errorf("the same inputs: %s and %s", same.fingerprint(), again.fingerprint())
	}
	seen := map[string]string{same.fingerprint(): "nothing"}
	for name, change := range map[string]func(fstest.MapFS, *inputs){
		"Dockerfile":      func(c fstest.MapFS, _ *inputs) { c["Dockerfile"].Data = []byte("ARG A\nFROM b\nRUN true") },
		"a file":          func(c fstest.MapFS, _ *inputs) { c["x"].Data = []byte("y") },
		"its name":        func(c fstest.MapFS, _ *inputs) { c["y"] = c["x"]; delete(c, "x") },
		"its mode":        func(c fstest.MapFS, _ *inputs) { c["x"].Mode = 0o755 },
		"an argument":     func(_ fstest.MapFS, in *inputs) { in.BuildArgs[0].Value = "2" },
		"no argument":     func(_ fstest.MapFS, in *inputs) { in.BuildArgs = nil },
		"a variable":      func(_ fstest.MapFS, in *inputs) { in.Env[0].Value = "2" },
		"the base":        func(_ fstest.MapFS, in *inputs) { in.Bases["b"] = "sha256:2" },
		"an empty folder": func(c fstest.MapFS, _ *inputs) { c["z/w"] = &fstest.MapFile{} },
	} {
		got := of(change)
		if other, ok := seen[got.fingerprint()]; ok {
			t.Errorf("changing %s gives the fingerprint of changing %s", name, other)
		}
		seen[got.fingerprint()] = name
		if (got.withoutBases() == same.withoutBases()) != (name == "the base") {
			t.Errorf("changing %s: without bases the fingerprints are %s and %s", name, got.withoutBases(), same.withoutBases())
		}
	}
}

// TestVariablesThatBuildsChange: OpenShift expands $NAME and $(NAME), and some releases escape other signs.
func TestVariablesThatBuildsChange(t *testing.T) {
	for _, value := range []string{"$HOME", "$(A)", "a$$b", "a&b", "<a>", `a\b`, "a\nb", "a\tb"} {
		if _, err := parseEnv([]string{"GOOD=1", "A=" + value}); err == nil ||
			!strings.Contains(err.Error(), "OpenShift's builds change the sign") {
			t.Errorf("%q: %v, want it refused", value, err)
		}
	}
	good := []string{`A="quoted" 'text' (with) signs: #!*;|%?=@~`, "B=é"}
	if args, err := parseEnv(good); err != nil || len(args) != 2 {
		t.Errorf("%q: %v, %v", good, args, err)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
