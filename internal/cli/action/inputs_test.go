// SPDX-License-Identifier: Apache-2.0

package action

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sethvargo/go-githubactions"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// environ returns the environment of a runner's step.
func environ(t *testing.T, given map[string]string, more map[string]string) func(string) string {
	t.Helper()
	all, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	return func(name string) string {
		if name == inputsVariable {
			return string(all)
		}
		return more[name]
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: c, user: u, namespace: from-kubeconfig}}]
clusters: [{name: c, cluster: {server: "https://api.example.com:6443"}}]
users: [{name: u, user: {token: sha256~first}}, {name: v, user: {password: second}}]
`

func TestSettings(t *testing.T) {
	workspace := t.TempDir()
	file := "cluster:\n  name: cairo\n  api: api.example.com\n  namespace: from-file\ngpus:\n  per_node: 4\nstorage:\n  mode: rwx\n  " +
		"class_rwx: nfs\n"
	for name, content := range map[string]string{"cairo.yaml": file,
		"wrong.yaml": strings.Replace(file, "mode: rwx\n", "mode: shared\n  size: 3\n", 1)} {
		if err := os.WriteFile(filepath.Join(workspace, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	github := map[string]string{
		"GITHUB_WORKSPACE": workspace, "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "octocat/model", "GITHUB_SHA": "0123abc",
	}
	type result struct {
		Host, Token, Namespace string
		Params                 map[string]string
		Problems               []string
	}
	tests := []struct {
		name  string
		given map[string]string
		want  result
	}{
		{
			"server and token, this repository", map[string]string{"server": "https://api:6443", "token": "t", "namespace": "ml",
				"script": "train.py", "nodes": "2", "image": ""},
			result{Host: "https://api:6443", Token: "t", Namespace: "ml", Params: map[string]string{
				"script": "train.py", "nodes": "2", "repo-url": "https://github.com/octocat/model.git", "revision": "0123abc",
			}},
		},
		{
			"another repository has its own default branch", map[string]string{"kubeconfig": kubeconfig, "script": "train.py",
				"repo-url": "https://example.com/a.git", "script-args": "--text\na b\n"},
			result{Host: "https://api.example.com:6443", Token: "sha256~first", Namespace: "from-kubeconfig", Params: map[string]string{
				"script": "train.py", "repo-url": "https://example.com/a.git", "script-args": "--text\na b\n",
			}},
		},
		{
			"a cluster file", map[string]string{"server": "https://api:6443", "token": "t", "cluster-file": "cairo.yaml", "script": "train.py",
				"repo-url": "r"},
			result{Host: "https://api:6443", Token: "t", Namespace: "from-file", Params: map[string]string{"script": "train.py", "repo-url": "r",
				"cluster": "cairo"}},
		},
		{
			"ID tokens without the permission", map[string]string{"server": "https://api:6443", "oidc-audience": "a", "namespace": "ml"},
			result{Problems: []string{`input oidc-audience "a": GitHub offers no ID token to this job: want permissions: {id-token: write}`}},
		},
		{
			"a token and ID tokens", map[string]string{"server": "https://api:6443", "oidc-audience": "a", "token": "t", "namespace": "ml"},
			result{Problems: []string{"inputs token and oidc-audience: both are given"}},
		},
		{
			"a kubeconfig and ID tokens", map[string]string{"kubeconfig": kubeconfig, "oidc-audience": "a", "namespace": "ml"},
			result{Problems: []string{"inputs kubeconfig and oidc-audience: both are given"}},
		},
		{
			"every mistake", map[string]string{"server": "https://api:6443", "cluster-file": "wrong.yaml"},
			result{Problems: []string{"input token: it is empty", "wrong.yaml:8:", "wrong.yaml:9:"}},
		},
		{"in the clear", map[string]string{"server": "api:6443", "token": "t", "namespace": "ml"},
			result{Problems: []string{`input server "api:6443": want a URL as https://`}}},
		{"no cluster", map[string]string{"namespace": "ml"}, result{Problems: []string{"neither is given"}}},
		{"no kubeconfig", map[string]string{"kubeconfig": "a: [", "namespace": "ml"}, result{Problems: []string{"input kubeconfig: "}}},
		{"no namespace", map[string]string{"server": "https://api:6443", "token": "t"},
			result{Problems: []string{"input namespace: it is empty"}}},
		{"no such file", map[string]string{"server": "https://api:6443", "token": "t", "cluster-file": "none.yaml"},
			result{Problems: []string{"none.yaml"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			getenv := environ(t, test.given, github)
			given, err := readInputs(getenv)
			if err != nil {
				t.Fatal(err)
			}
			got, err := given.settings(getenv)
			if len(test.want.Problems) > 0 {
				if fail.ReasonOf(err) != fail.InvalidInput {
					t.Errorf("got %v, want reason InvalidInput", err)
				}
				for _, problem := range test.want.Problems {
					if err == nil || !strings.Contains(err.Error(), problem) {
						t.Errorf("got %v, want %q in it", err, problem)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			seen := result{Host: got.config.Host, Token: got.config.BearerToken, Namespace: got.namespace, Params: got.params}
			if diff := cmp.Diff(test.want, seen); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSecrets(t *testing.T) {
	got := inputs{"token": "t", "kubeconfig": kubeconfig}.secrets()
	if diff := cmp.Diff(map[string]bool{"t": true, "sha256~first": true, "second": true}, set(got)); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
}

func set(values []string) map[string]bool {
	all := map[string]bool{}
	for _, value := range values {
		all[value] = true
	}
	return all
}

// If inputs are invalid, the secrets that can still be read are masked before the error is printed.
func TestSecretsAreMaskedFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		inputs string
		masks  []string
	}{
		"inputs that are not texts": {`{"token": "sha256~abc", "nodes": 2}`, []string{"sha256~abc"}},
		"no kubeconfig":             {`{"kubeconfig": "token: sha256~abc\n  a: [", "script": "s"}`, []string{"token: sha256~abc"}},
		"passwords in URLs": {`{"token": "t1", "server": "api", "repo-url": "https://me:hunter2@example.com/r.git"}`,
			[]string{"t1", "hunter2"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			gh := githubactions.New(githubactions.WithWriter(&out))
			_, _, err := begin(gh, func(name string) string { return map[string]string{inputsVariable: tc.inputs}[name] })
			if fail.ReasonOf(err) != fail.InvalidInput {
				t.Errorf("got %v, want InvalidInput", err)
			}
			for _, mask := range tc.masks {
				if !strings.Contains(out.String(), "::add-mask::"+mask+"\n") {
					t.Errorf("%q is not masked in\n%s", mask, out.String())
				}
			}
		})
	}
}

// FuzzInputs reads inputs as a workflow may give them: a token is always a secret, settings keep the value of every param,
// and an error always has the reason InvalidInput.
func FuzzInputs(f *testing.F) {
	f.Add(`{"server":"https://api:6443","token":"t","namespace":"ml","script":"train.py"}`)
	f.Add(`{"kubeconfig":"a: [","token":" t\n"}`)
	f.Add(`{"token":"x","nodes":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		getenv := func(name string) string { return map[string]string{inputsVariable: text}[name] }
		given, err := readInputs(getenv)
		if token := given[tokenInput]; strings.TrimSpace(token) != "" && !slices.Contains(given.secrets(), token) {
			t.Errorf("token %q is no secret", token)
		}
		if err != nil {
			return
		}
		delete(given, clusterFileInput) // it would read files of this machine
		s, err := given.settings(getenv)
		if err != nil && fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("got %v, want InvalidInput", err)
		}
		for name, value := range s.params {
			if value != given[name] || slices.Contains(ownInputs(), name) {
				t.Errorf("param %s is %q, want %q", name, value, given[name])
			}
		}
	})
}

func TestInputsThatAreNoJSON(t *testing.T) {
	if _, err := readInputs(func(string) string { return "" }); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("got %v, want reason InvalidInput", err)
	}
}
