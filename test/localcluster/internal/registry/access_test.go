// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// rights has the known tokens and their verbs on image streams, which are below team/.
type rights map[string]string

func (r rights) May(_ context.Context, token, _, _, verb string) (known, allowed bool, err error) {
	verbs, known := r[token]
	return known, strings.Contains(verbs, verb), nil
}

func (r rights) HasStreams(_ context.Context, namespace string) (bool, error) {
	return namespace == "team", nil
}

func TestAccess(t *testing.T) {
	g, err := newGate(t.TempDir(), rights{"builder": "get update", "puller": "get", "other": ""})
	if err != nil {
		t.Fatal(err)
	}
	cluster, node, private := g.passwords[ClusterUser], g.passwords[NodeUser], g.passwords[PrivateUser]
	const (
		get, put      = http.MethodGet, http.MethodPut
		stream        = "/v2/team/app/manifests/1"
		image         = "/v2/tools/app/manifests/1"
		bearer        = "bearer" // the password is the bearer token
		basic, tokens = "Basic", "Bearer"
	)
	tests := []struct {
		name, method, path, user, password string
		want                               int
		challenge                          string
	}{
		{"anonymous ping", get, "/v2/", "", "", 401, basic},
		{"anonymous list of repositories", get, "/v2/_catalog", "", "", 401, basic},
		{"anonymous pull", get, image, "", "", 401, basic},
		{"anonymous push", put, image, "", "", 401, basic},
		{"unknown user", get, image, "somebody", cluster, 401, basic},
		{"empty password", get, image, ClusterUser, "", 401, basic},
		{"another user's password", get, image, ClusterUser, private, 401, basic},
		{"ping", get, "/v2/", ClusterUser, cluster, 200, ""},
		{"pull by a node", get, image, NodeUser, node, 200, ""},
		{"push by a node", put, image, NodeUser, node, 403, ""},
		{"push by a program on the machine", put, image, ClusterUser, cluster, 200, ""},
		{"pull by a service account", get, image, accountUser, "other", 200, ""},

		{"private, by a node", get, "/v2/private/base/manifests/1", NodeUser, node, 401, basic},
		{"private, by a program on the machine", get, "/v2/private/base/manifests/1", ClusterUser, cluster, 401, basic},
		{"private, by a service account", get, "/v2/private/base/manifests/1", accountUser, "builder", 401, basic},
		{"private, wrong password", get, "/v2/private/base/manifests/1", PrivateUser, "x", 401, basic},
		{"private, its user pulls", get, "/v2/private/base/blobs/sha256:1", PrivateUser, private, 200, ""},
		{"private, its user pushes", put, "/v2/private/base/manifests/1", PrivateUser, private, 200, ""},
		{"the private user pulls elsewhere", get, image, PrivateUser, private, 200, ""},
		{"the private user pushes elsewhere", put, image, PrivateUser, private, 403, ""},
		{"read-only, pull", get, "/v2/readonly/a/manifests/1", NodeUser, node, 200, ""},
		{"read-only, push", http.MethodPost, "/v2/readonly/a/blobs/uploads/", ClusterUser, cluster, 403, ""},

		{"stream, anonymous pull", get, stream, "", "", 401, tokens},
		{"stream, pull by a node", get, stream, NodeUser, node, 401, tokens},
		{"stream, pull by the private user", get, stream, PrivateUser, private, 401, tokens},
		{"stream, pull by a program on the machine", get, stream, ClusterUser, cluster, 200, ""},
		{"stream, push by a program on the machine", put, stream, ClusterUser, cluster, 200, ""},
		{"stream, another user's password", get, stream, ClusterUser, private, 401, basic},
		{"stream, pull with the right", get, stream, accountUser, "puller", 200, ""},
		{"stream, pull with the right and a bearer token", get, stream, bearer, "puller", 200, ""},
		{"stream, pull without the right", get, stream, accountUser, "other", 401, basic},
		{"stream, pull without the right and with a bearer token", get, stream, bearer, "other", 401, basic},
		{"stream, pull with the token of nobody", get, stream, bearer, anonymousToken, 401, basic},
		{"stream, pull with a forged token", get, stream, accountUser, "forged", 401, basic},
		{"stream, push with the right", put, stream, accountUser, "builder", 200, ""},
		{"stream, push with the right to pull", put, stream, accountUser, "puller", 403, ""},
		{"stream, push with a forged token", put, stream, accountUser, "forged", 401, basic},
	}
	for _, test := range tests {
		request := httptest.NewRequest(test.method, test.path, nil)
		switch test.user {
		case "":
		case bearer:
			request.Header.Set("Authorization", "Bearer "+test.password)
		default:
			request.SetBasicAuth(test.user, test.password)
		}
		answer := httptest.NewRecorder()
		refused := g.refuse(answer, request)
		challenge, _, _ := strings.Cut(answer.Header().Get("WWW-Authenticate"), " ")
		if answer.Code != test.want || refused != (test.want != 200) || challenge != test.challenge {
			t.Errorf("%s: %d, refused %v, challenge %q; want %d, %q", test.name, answer.Code, refused, challenge, test.want, test.challenge)
		}
	}
}

// TestPullOfAStreamAsANodeDoesIt follows the challenge with the credentials of a pod's pull secret.
func TestPullOfAStreamAsANodeDoesIt(t *testing.T) {
	r, err := Open(t.TempDir(), newStore(t), rights{"puller": "get"})
	if err != nil {
		t.Fatal(err)
	}
	const server = "http://registry.example:5000"
	send := func(method, url string, credentials func(*http.Request)) *httptest.ResponseRecorder {
		request := httptest.NewRequest(method, url, nil)
		credentials(request)
		answer := httptest.NewRecorder()
		r.ServeHTTP(answer, request)
		return answer
	}
	basic := func(user, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	stream := server + "/v2/team/app/manifests/1"
	_, realm, _ := strings.Cut(send(http.MethodGet, stream, basic(NodeUser, r.gate.passwords[NodeUser])).Header().Get("WWW-Authenticate"),
		"realm=")
	realm = strings.Trim(realm, `"`)
	if want := server + "/openshift/token"; realm != want {
		t.Fatalf("tokens are at %q, want %q", realm, want)
	}
	// containerd posts first, and then gets.
	for name, refused := range map[string]*httptest.ResponseRecorder{
		"a POST":         send(http.MethodPost, realm, basic(accountUser, "puller")),
		"a forged token": send(http.MethodGet, realm, basic(accountUser, "forged")),
		"a node":         send(http.MethodGet, realm, basic(NodeUser, r.gate.passwords[NodeUser])),
	} {
		if want := map[bool]int{true: 405, false: 401}[name == "a POST"]; refused.Code != want {
			t.Errorf("%s gets %d, want %d", name, refused.Code, want)
		}
	}
	for want, credentials := range map[string]func(*http.Request){"puller": basic(accountUser, "puller"), anonymousToken: func(*http.Request) {
	}} {
		var got struct {
			Token       string `json:"token"`
			AccessToken string `json:"access_token"`
		}
		if err := json.NewDecoder(send(http.MethodGet, realm, credentials).Body).Decode(&got); err != nil || got.Token != want ||
			got.AccessToken != want {
			t.Errorf("token %+v, %v; want %s", got, err, want)
		}
	}
	pulled := send(http.MethodGet, stream, func(r *http.Request) { r.Header.Set("Authorization", "Bearer puller") })
	if pulled.Code != http.StatusNotFound {
		t.Errorf("an image that was never pushed: %d, want 404", pulled.Code)
	}
}

func TestCredentialsAreKept(t *testing.T) {
	dir := t.TempDir()
	for _, user := range []string{ClusterUser, NodeUser, PrivateUser} {
		first, err := Password(dir, user)
		if err != nil {
			t.Fatal(err)
		}
		second, err := Password(dir, user)
		if err != nil || first == "" || first != second {
			t.Errorf("passwords of %s: %q, then %q, %v", user, first, second, err)
		}
		if info, err := os.Stat(CredentialsFile(dir, user)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("credentials of %s: %v, %v; want mode 0600", user, info, err)
		}
	}
}
