package registry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

type rights map[string]bool

func (r rights) MayPush(_ context.Context, token, _, _ string) (known, allowed bool, err error) {
	allowed, known = r[token]
	return known, allowed, nil
}

func TestWhoMayDoWhat(t *testing.T) {
	g, err := newGate(t.TempDir(), rights{"builder": true, "other": false})
	if err != nil {
		t.Fatal(err)
	}
	const get, put = http.MethodGet, http.MethodPut
	tests := []struct {
		name, method, path, user, password string
		want                               int
	}{
		{"anybody reads", get, "/v2/team/app/manifests/1", "", "", 200},
		{"anybody pushes", put, "/v2/team/app/manifests/1", "", "", 200},
		{"clients are asked for credentials", get, "/v2/", "", "", 401},
		{"and may show any", get, "/v2/", "x", "y", 200},
		{"private, nobody", get, "/v2/private/base/manifests/1", "", "", 401},
		{"private, wrong password", get, "/v2/private/base/manifests/1", g.user, "x", 401},
		{"private, right", get, "/v2/private/base/blobs/sha256:1", g.user, g.password, 200},
		{"read-only, read", get, "/v2/readonly/a/manifests/1", "", "", 200},
		{"read-only, push", http.MethodPost, "/v2/readonly/a/blobs/uploads/", "", "", 403},
		{"a service account with the right", put, "/v2/team/app/manifests/1", "serviceaccount", "builder", 200},
		{"one without", put, "/v2/team/app/manifests/1", "serviceaccount", "other", 403},
		{"one that reads", get, "/v2/team/app/manifests/1", "serviceaccount", "other", 200},
		{"no token of the cluster's", put, "/v2/team/app/manifests/1", "serviceaccount", "forged", 401},
	}
	for _, test := range tests {
		request := httptest.NewRequest(test.method, test.path, nil)
		if test.user != "" {
			request.SetBasicAuth(test.user, test.password)
		}
		answer := httptest.NewRecorder()
		refused := g.refuse(answer, request)
		if answer.Code != test.want || refused != (test.want != 200) {
			t.Errorf("%s: %d, refused %v; want %d", test.name, answer.Code, refused, test.want)
		}
	}
}

func TestCredentialsAreKept(t *testing.T) {
	dir := t.TempDir()
	first, err := newGate(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := newGate(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if first.password == "" || first.password != second.password {
		t.Errorf("passwords %q, then %q", first.password, second.password)
	}
}
