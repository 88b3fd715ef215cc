// SPDX-License-Identifier: Apache-2.0

package git

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestAuthFromDir(t *testing.T) {
	for _, test := range []struct {
		name           string
		keys           map[string]string
		user, password string
	}{
		{"nothing", nil, "", ""},
		{"user and password", map[string]string{"username": "me\n", "password": " pass\n"}, "me", "pass"},
		{"token alone", map[string]string{"token": "t"}, tokenUser, "t"},
		{"password before token", map[string]string{"token": "t", "password": "p"}, tokenUser, "p"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := secret(t, test.keys)
			if a.user != test.user || a.password != test.password {
				t.Errorf("got %q, %q: want %q, %q", a.user, a.password, test.user, test.password)
			}
		})
	}
	for _, dir := range []string{"", filepath.Join(t.TempDir(), "none")} {
		if a, err := AuthFromDir(dir); err != nil || a != (Auth{}) {
			t.Errorf("folder %q: got %v, %v: want anonymous", dir, a, err)
		}
	}
}

func TestAuthRefuses(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "ssh-privatekey", "no key, but secret")
	_, err := AuthFromDir(dir)
	wantFailure(t, err, fail.InvalidInput, "ssh-privatekey: it is not a private key", "")
	if strings.Contains(err.Error(), "but secret") {
		t.Errorf("a secret is shown: %v", err)
	}
	put(t, dir, "ca", "no certificate")
	_, err = Auth{}.WithCAFile(filepath.Join(dir, "ca"))
	wantFailure(t, err, fail.InvalidInput, "it has no certificate: want PEM", "")
	for _, name := range []string{"", filepath.Join(dir, "missing")} {
		if _, err := (Auth{}).WithCAFile(name); err != nil {
			t.Errorf("CA file %q: got %v: want none", name, err)
		}
	}
}

func TestAuthShowsNoSecret(t *testing.T) {
	_, key := newKey(t)
	a := secret(t, map[string]string{"username": "me", "password": "hush", "ssh-privatekey": key, "known_hosts": ""})
	s := Source{URL: "https://git.example/r", Auth: a}
	if _, err := os.Stat(a.knownHosts); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(format, s); strings.Contains(got, "hush") || !strings.Contains(got, "auth(...)") {
			t.Errorf("%s: got %s", format, got)
		}
	}
}

func TestKeyring(t *testing.T) {
	for _, test := range []struct {
		home, asked string
		want        bool
	}{
		{"https://git.example/r", "https://git.example/other", true},
		{"https://git.example/r", "https://git.example:443/other", true},
		{"https://git.example/r", "https://GIT.example/other", true},
		{"https://git.example/r", "https://sub.git.example/r", false},
		{"https://git.example/r", "https://git.example:8443/r", false},
		{"https://git.example/r", "http://git.example/r", false},
		{"https://git.example/r", "https://evil.example/r", false},
		{"git@git.example:r", "https://git.example/r", true},
		{"git@git.example:r", "http://git.example/r", false},
		{"http://git.example/r", "http://git.example/r", true},
	} {
		home, err := parseAddress(test.home)
		if err != nil {
			t.Fatal(err)
		}
		asked, err := parseAddress(test.asked)
		if err != nil {
			t.Fatal(err)
		}
		keys := newKeyring(Auth{user: "me", password: "hush"}, home)
		if _, _, got := keys.basicAuth(asked.scheme, asked.host, asked.port); got != test.want {
			t.Errorf("credentials of %s for %s: got %t: want %t", test.home, test.asked, got, test.want)
		}
	}
}
