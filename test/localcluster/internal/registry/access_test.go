package registry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

type rights map[string]bool

func (r rights) MayPush(_ context.Context, token, _, _ string) (known, allowed bool, err error) {
	allowed, known = r[token]
	return known, allowed, nil
}

func TestAccess(t *testing.T) {
	g, err := newGate(t.TempDir(), rights{"builder": true, "other": false})
	if err != nil {
		t.Fatal(err)
	}
	cluster, private := g.passwords[ClusterUser], g.passwords[PrivateUser]
	const get, put = http.MethodGet, http.MethodPut
	const image = "/v2/team/app/manifests/1"
	tests := []struct {
		name, method, path, user, password string
		want                               int
	}{
		{"anonymous ping", get, "/v2/", "", "", 401},
		{"anonymous list of repositories", get, "/v2/_catalog", "", "", 401},
		{"anonymous pull", get, image, "", "", 401},
		{"anonymous push", put, image, "", "", 401},
		{"unknown user", get, image, "somebody", cluster, 401},
		{"empty password", get, image, ClusterUser, "", 401},
		{"another user's password", get, image, ClusterUser, private, 401},
		{"ping", get, "/v2/", ClusterUser, cluster, 200},
		{"pull by a node", get, image, ClusterUser, cluster, 200},
		{"push by a program on the machine", put, image, ClusterUser, cluster, 200},
		{"private, by a node", get, "/v2/private/base/manifests/1", ClusterUser, cluster, 401},
		{"private, by a service account", get, "/v2/private/base/manifests/1", accountUser, "builder", 401},
		{"private, wrong password", get, "/v2/private/base/manifests/1", PrivateUser, "x", 401},
		{"private, its user pulls", get, "/v2/private/base/blobs/sha256:1", PrivateUser, private, 200},
		{"private, its user pushes", put, "/v2/private/base/manifests/1", PrivateUser, private, 200},
		{"the private user pulls elsewhere", get, image, PrivateUser, private, 200},
		{"the private user pushes elsewhere", put, image, PrivateUser, private, 403},
		{"read-only, pull", get, "/v2/readonly/a/manifests/1", ClusterUser, cluster, 200},
		{"read-only, push", http.MethodPost, "/v2/readonly/a/blobs/uploads/", ClusterUser, cluster, 403},
		{"push by a service account with the right", put, image, accountUser, "builder", 200},
		{"push by one without", put, image, accountUser, "other", 403},
		{"pull by one without", get, image, accountUser, "other", 200},
		{"push with a forged token", put, image, accountUser, "forged", 401},
		{"pull with a forged token", get, image, accountUser, "forged", 401},
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
	for _, user := range []string{ClusterUser, PrivateUser} {
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
