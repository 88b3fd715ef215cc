// SPDX-License-Identifier: Apache-2.0

package git

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestParseAddress(t *testing.T) {
	for _, test := range []struct {
		text, shown string
		want        address
	}{
		{"https://git.example/team/repo.git", "https://git.example/team/repo.git",
			address{scheme: "https", host: "git.example", path: "/team/repo.git"}},
		{"https://me:pass@Git.Example:8443/team/repo/", "https://git.example:8443/team/repo",
			address{scheme: "https", host: "git.example", port: "8443", path: "/team/repo", user: "me", password: "pass"}},
		{"http://[::1]:80/r", "http://[::1]:80/r", address{scheme: "http", host: "::1", port: "80", path: "/r"}},
		{"ssh://git@git.example:2222/team/repo", "ssh://git.example:2222/team/repo", address{scheme: "ssh", host: "git.example", port: "2222",
			path: "/team/repo", user: "git"}},
		{"git+ssh://git.example/~me/repo", "ssh://git.example/~me/repo", address{scheme: "ssh", host: "git.example", path: "~me/repo"}},
		{"git@git.example:team/repo.git", "ssh://git.example/team/repo.git", address{scheme: "ssh", host: "git.example", path: "team/repo.git",
			user: "git"}},
		{"git.example:/srv/repo", "ssh://git.example/srv/repo", address{scheme: "ssh", host: "git.example", path: "/srv/repo"}},
	} {
		got, err := parseAddress(test.text)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(address{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.text, diff)
		}
		if got.String() != test.shown {
			t.Errorf("%s: printed as %s: want %s", test.text, got, test.shown)
		}
		if got := WithoutUser(test.text); got != test.shown {
			t.Errorf("%s: shown as %s: want %s", test.text, got, test.shown)
		}
	}
}

func TestParseAddressRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "it is a path on this machine",
		"/srv/repo":                         "it is a path on this machine",
		"./repo":                            "it is a path on this machine",
		"file:///srv/repo":                  "its scheme is file",
		"git://git.example/repo":            "its scheme is git",
		"https://git.example":               "no path",
		"https://":                          "no host",
		"https://git.example/r?token=hush":  "a query",
		"https://me:hush@git.example/%zz":   "no URL",
		"https://me:hu/sh@git.example/repo": "no URL",
		"https://me:hu?sh@git.example/repo": "no URL",
		"https://git.example/a\nb":          "control characters",
		"ssh://::/repo":                     "is not an IP address",
		"https://git.example;x/repo":        "other characters than letters",
	} {
		_, err := parseAddress(text)
		wantFailure(t, err, fail.InvalidInput, want, "")
		if shown := WithoutUser(text); shown != "" {
			t.Errorf("%s: printed as %s: want nothing", text, shown)
		}
		if strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "hu/sh") || strings.Contains(err.Error(), "me:hu") {
			t.Errorf("%s: a secret is shown: %v", text, err)
		}
	}
}

func TestSubmoduleAddress(t *testing.T) {
	for _, test := range []struct{ parent, url, want string }{
		{"https://me:pass@git.example/team/repo.git", "../other.git", "https://git.example/team/other.git"},
		{"https://git.example/team/repo.git", "./lib.git", "https://git.example/team/repo.git/lib.git"},
		{"https://git.example/team/repo", "../../else/lib", "https://git.example/else/lib"},
		{"git@git.example:team/repo.git", "../other.git", "ssh://git.example/team/other.git"},
		{"ssh://git@git.example:22/team/repo.git", "../../x/y", "ssh://git.example:22/x/y"},
		{"https://git.example/team/repo", "https://else.example/lib", "https://else.example/lib"},
		{"https://git.example/team/repo", "../../../lib", ""},
		{"git@git.example:repo", "../../lib", ""},
	} {
		parent, err := parseAddress(test.parent)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parent.submodule(test.url)
		if (err != nil) != (test.want == "") || err == nil && got.String() != test.want {
			t.Errorf("%s of %s: got %s, %v: want %q", test.url, test.parent, got, err, test.want)
		}
	}
}
