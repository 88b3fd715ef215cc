// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseRefuses(t *testing.T) {
	tests := map[string]string{
		"":                       "file with no instructions",
		"# nothing\n":            "file with no instructions",
		"FROM a\nENV X\n":        "line 2: ENV must have two arguments",
		"FROM a\nRUN <<E\nend\n": "line 2: unterminated heredoc",
	}
	for text, want := range tests {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%q) = %v, want %q", text, err, want)
		}
	}
}

func TestComplete(t *testing.T) {
	j := &job{out: &bytes.Buffer{}, build: &buildv1.Build{
		ObjectMeta: metav1.ObjectMeta{Name: "app-1", Namespace: "team"},
		Spec: buildv1.BuildSpec{CommonSpec: buildv1.CommonSpec{
			Strategy: buildv1.BuildStrategy{DockerStrategy: &buildv1.DockerBuildStrategy{
				Env: []corev1.EnvVar{{Name: "COLOUR", Value: `dark "$blue"`}},
			}},
			Output: buildv1.BuildOutput{ImageLabels: []buildv1.ImageLabel{{Name: "who", Value: "me"}}},
		}},
	}}
	got, err := j.complete("FROM a AS first\nRUN x <<END\nx\nEND\nFROM --platform=p \\\n b\nRUN y\n")
	if err != nil {
		t.Fatal(err)
	}
	want := `FROM a AS first
ENV "COLOUR"="dark \"$blue\""
RUN x <<END
FROM --platform=p \
 b
ENV "COLOUR"="dark \"$blue\""
RUN y

ENV "OPENSHIFT_BUILD_NAME"="app-1" "OPENSHIFT_BUILD_NAMESPACE"="team"
LABEL "io.openshift.build.name"="app-1" "io.openshift.build.namespace"="team" "who"="me"
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestBases(t *testing.T) {
	tests := []struct {
		name, text string
		arguments  []corev1.EnvVar
		want       []string
	}{
		{"plain", "FROM a:1\n", nil, []string{"a:1"}},
		{"argument's default", "ARG B=a:1\nFROM ${B}\n", nil, []string{"a:1"}},
		{"argument given", "ARG B=a:1\nFROM $B\n", []corev1.EnvVar{{Name: "B", Value: "b:2"}}, []string{"b:2"}},
		{"fallback", "ARG B\nFROM ${B:-c}\n", nil, []string{"c"}},
		{"stages and scratch", "FROM a AS one\nFROM scratch\nFROM one\nFROM a\n", nil, []string{"a"}},
		{"an argument of a stage is not one of FROM", "FROM a\nARG B=x\nFROM b$B\n", nil, []string{"a", "b"}},
	}
	for _, test := range tests {
		got, err := bases(test.text, test.arguments)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	if _, err := bases("RUN x\n", nil); err == nil || err.Error() != "no FROM image in Dockerfile" {
		t.Errorf("without FROM: %v", err)
	}
}

func TestBuildahsFinalErrorIsNotInTheLog(t *testing.T) {
	var log bytes.Buffer
	e := &errorLines{out: &log}
	for _, part := range []string{"STEP 1\nsubprocess ex", "ited\nError: building", ": exit status 7\nmore\n"} {
		if _, err := e.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := log.String(), "STEP 1\nsubprocess exited\n"; got != want {
		t.Errorf("log %q, want %q", got, want)
	}
	if got, want := e.errors(), "building: exit status 7\nmore"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

func TestTail(t *testing.T) {
	tail := &tail{}
	for range 100 {
		if _, err := tail.Write([]byte("a\nb\nc")); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(tail.String(), "\n")
	if len(lines) != tailLines+1 || lines[len(lines)-1] != "c" {
		t.Errorf("%d lines ending in %q, want %d and c", len(lines), lines[len(lines)-1], tailLines+1)
	}
}
