// SPDX-License-Identifier: Apache-2.0

package gitserver

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func head(t *testing.T, dir, name string) string {
	t.Helper()
	out, err := exec.Command("git", "-C", filepath.Join(dir, reposDir, name+".git"), "-c", "safe.directory=*", "rev-parse",
		"main").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestRepositoriesAreTheSameEverywhere(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b, a} { // twice in a, because Prepare can be repeated
		if err := Prepare(t.Context(), dir, []string{"git.example.com", "192.0.2.1"}); err != nil {
			t.Fatal(err)
		}
	}
	for name := range contents {
		if got, want := head(t, a, name), head(t, b, name); got != want {
			t.Errorf("%s is at %s here and at %s there", name, got, want)
		}
	}
}

func TestOnlyThePrivateRepositoryWantsTheToken(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	handler := authorize("token", served)
	tests := []struct {
		path, password string
		want           int
	}{
		{"/public.git/info/refs", "", http.StatusTeapot},
		{"/private.git/info/refs", "", http.StatusUnauthorized},
		{"/private.git/info/refs", "wrong", http.StatusUnauthorized},
		{"/private.git/info/refs", "token", http.StatusTeapot},
	}
	for _, test := range tests {
		request := httptest.NewRequest(http.MethodGet, test.path, nil)
		if test.password != "" {
			request.SetBasicAuth("anybody", test.password)
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		if answer.Code != test.want {
			t.Errorf("%s with %q: %d, want %d", test.path, test.password, answer.Code, test.want)
		}
	}
}
