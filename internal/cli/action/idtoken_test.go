// SPDX-License-Identifier: Apache-2.0

package action

import (
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sethvargo/go-githubactions"
	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/test/oidctest"
)

// trusting is an API server that trusts the issuer, as its authentication configuration says, and no other token. It knows the pipeline.
// Of the first requests it refuses so many, whatever their token.
type trusting struct {
	*httptest.Server
	refuses  atomic.Int32
	subjects []string
}

const audience = "https://api.example.com"

func startTrusting(t *testing.T, issuer *oidctest.Issuer) *trusting {
	t.Helper()
	s := &trusting{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		subject, err := issuer.Verify(token, audience)
		if err != nil || s.refuses.Add(-1) >= 0 {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": 401}`))
			return
		}
		s.subjects = append(s.subjects, subject)
		_, _ = w.Write([]byte(`{"kind": "Pipeline", "apiVersion": "tekton.dev/v1", "metadata": {"name": "train-multi-node", "namespace": "ml"}}`))
	}))
	t.Cleanup(s.Close)
	return s
}

// beginWith begins a step of a job that may ask the issuer for ID tokens.
func beginWith(t *testing.T, issuer *oidctest.Issuer, server *trusting, out *strings.Builder) *action {
	t.Helper()
	given := map[string]string{"server": server.URL, "oidc-audience": audience, "namespace": "ml", "script": "train.py"}
	given["certificate-authority"] = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	getenv := environ(t, given, maps.Clone(issuer.Environment()))
	gh := githubactions.New(githubactions.WithWriter(out), githubactions.WithGetenv(getenv), githubactions.WithHTTPClient(issuer.Client()))
	a, _, err := begin(gh, getenv)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// With oidc-audience the action's requests have GitHub's ID token for that audience, a new one when the old one is about to expire, and
// each is masked.
func TestIDTokens(t *testing.T) {
	for name, tc := range map[string]struct {
		lifetime time.Duration
		issued   int
	}{"one for several requests": {5 * time.Minute, 1}, "a run that is longer than a token": {spare, 3}} {
		t.Run(name, func(t *testing.T) {
			issuer := oidctest.Start(t, "127.0.0.1", "repo:octocat/model:ref:refs/heads/main")
			issuer.Lifetime = tc.lifetime
			server := startTrusting(t, issuer)
			var out strings.Builder
			a := beginWith(t, issuer, server, &out)
			for range 3 {
				if _, err := launch.Installed(t.Context(), a.clients); err != nil {
					t.Fatal(err)
				}
			}
			tokens := issuer.Issued()
			if len(tokens) != tc.issued || !slices.Equal(slices.Compact(server.subjects), []string{issuer.Subject}) {
				t.Errorf("%d tokens for requests of %v; want %d, and the job's subject", len(tokens), server.subjects, tc.issued)
			}
			for _, token := range tokens {
				if !strings.Contains(out.String(), "::add-mask::"+token) {
					t.Error("a token is not masked in the job's log")
				}
			}
		})
	}
}

// While a training's output is shown, the runner executes no commands, and would print one that masks a token.
func TestMaskWhileCommandsAreStopped(t *testing.T) {
	var out strings.Builder
	g := newGroups(githubactions.New(githubactions.WithWriter(&out)))
	g.printLine("train", "a line")
	g.maskSecret("secret")
	g.printLine("train", "another")
	g.endTask("train")
	g.maskSecret("later")
	want := fmt.Sprintf("::group::train\n::stop-commands::%[1]s\na line\n::%[1]s::\n::add-mask::secret\n::stop-commands::%[1]s\n"+
		"another\n::%[1]s::\n::endgroup::\n::add-mask::later\n", g.token)
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A token that the API server refuses is not used again, and a refusal of all tokens is reported as that.
func TestRefusedIDToken(t *testing.T) {
	issuer := oidctest.Start(t, "127.0.0.1", "repo:octocat/model:ref:refs/heads/main")
	server := startTrusting(t, issuer)
	server.refuses.Store(1)
	a := beginWith(t, issuer, server, &strings.Builder{})
	get := func() error {
		_, err := a.clients.Tekton.TektonV1().Pipelines("ml").Get(t.Context(), launch.Pipeline, metav1.GetOptions{})
		return kube.Problem(err)
	}
	if err := get(); fail.ReasonOf(err) != fail.PermissionDenied {
		t.Errorf("got %v, want PermissionDenied", err)
	}
	if err := get(); err != nil || len(issuer.Issued()) != 2 {
		t.Errorf("%v after %d tokens; want the second one accepted", err, len(issuer.Issued()))
	}
}

// The examples bind the user that the page's configuration gives a workflow, and the rights in all namespaces are those in one.
func TestOIDCExamples(t *testing.T) {
	const folder = "../../../docs/examples/github/"
	documents := func(name string) (all []map[string]any) {
		content, err := os.ReadFile(folder + name)
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.SplitSeq(string(content), "\n---\n") {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(text), &object); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all = append(all, object)
		}
		return all
	}
	decode := func(object map[string]any, into any) {
		t.Helper()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object, into, true); err != nil {
			t.Error(err)
		}
	}
	var role rbacv1.Role
	var clusterRole rbacv1.ClusterRole
	var binding rbacv1.RoleBinding
	var clusterBinding rbacv1.ClusterRoleBinding
	decode(documents("rights.yaml")[1], &role)
	decode(documents("oidc.yaml")[0], &binding)
	decode(documents("oidc-cluster.yaml")[0], &clusterRole)
	decode(documents("oidc-cluster.yaml")[1], &clusterBinding)
	if diff := cmp.Diff(role.Rules, clusterRole.Rules); diff != "" {
		t.Errorf("rules (-rights.yaml +oidc-cluster.yaml):\n%s", diff)
	}
	if binding.RoleRef.Name != role.Name || clusterBinding.RoleRef.Name != clusterRole.Name {
		t.Errorf("the bindings are to %s and %s, want %s and %s", binding.RoleRef.Name, clusterBinding.RoleRef.Name, role.Name, clusterRole.Name)
	}
	want := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "github:repo:ORGANIZATION/REPOSITORY:ref:refs/heads/main"}}
	if diff := cmp.Diff([][]rbacv1.Subject{want, want}, [][]rbacv1.Subject{binding.Subjects, clusterBinding.Subjects}); diff != "" {
		t.Errorf("subjects (-want +got):\n%s", diff)
	}
	var renewal rbacv1.Role
	var job batchv1.CronJob
	decode(documents("renew-token.yaml")[1], &renewal)
	decode(documents("renew-token.yaml")[3], &job)
	rules := []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{"github"}, Verbs: []string{"create"},
	}}
	if diff := cmp.Diff(rules, renewal.Rules); diff != "" {
		t.Errorf("rights of the renewal (-want +got):\n%s", diff)
	}
}
