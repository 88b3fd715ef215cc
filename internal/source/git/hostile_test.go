// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// TestAnswer: only the repository's own host gets the password, however git asks for it.
func TestAnswer(t *testing.T) {
	home, err := parseAddress("https://git.example/team/model.git")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, user, question, want string
	}{
		{"a user is asked for", "me", "Username for 'https://git.example': ", "me"},
		{"a password", "me", "Password for 'https://me@git.example': ", "secret"},
		{"as git-lfs asks", "me", `Password for "https://me@git.example"`, "secret"},
		{"an escaped user", `corp\me`, "Password for 'https://corp%5Cme@git.example': ", "secret"},
		{"a user as it is", `corp\me`, `Password for 'https://corp\me@git.example': `, "secret"},
		{"another host", "me", "Password for 'https://me@evil.example': ", ""},
		{"another port", "me", "Password for 'https://me@git.example:8443': ", ""},
		{"another scheme", "me", "Password for 'http://me@git.example': ", ""},
		{"a user that ends in a slash", "me", "Password for 'https://git.example/@evil.example': ", ""},
		{"a user with a question mark", "me", "Password for 'https://git.example?@evil.example': ", ""},
		{"a user with a hash", "me", "Password for 'https://git.example#@evil.example': ", ""},
		{"our user and another one", "me", "Password for 'https://me@git.example/@evil.example': ", ""},
		{"an escaped host", "me", "Password for 'https://git.example%2f@evil.example': ", ""},
		{"a passphrase", "me", "Enter passphrase for key '/id': ", ""},
		{"no question", "me", "git.example", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			keys := newKeyring(Auth{user: test.user, password: "secret"}, home)
			got, err := keys.answer(test.question)
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("%s: got %q, %v; want %q", test.question, got, err, test.want)
			}
		})
	}
}

// TestRemoteCommand: no part of a repository becomes a command of the ssh server's shell.
func TestRemoteCommand(t *testing.T) {
	for command, want := range map[string]bool{
		"git-upload-pack '/team/model.git'":                     true,
		`git-upload-pack '~me/it'\\''s.git'`:                    false, // an escaped backslash ends the quotes
		`git-upload-pack '/it'\''s here.git'`:                   true,
		"git-lfs-authenticate team/model.git download":          true,
		"git-upload-pack '/x'; touch y":                         false,
		"git-upload-pack '/x' '$(touch y)'":                     false,
		"git-lfs-authenticate x;touch y download":               false,
		"git-lfs-authenticate $(touch y) download":              false,
		"git-lfs-authenticate team/model.git download; touch y": false,
		"git-lfs-authenticate team/model.git\ntouch y download": false,
		"git-lfs-authenticate -x download":                      false,
		"git-lfs-transfer team/model.git download":              false,
		"git-receive-pack '/team/model.git'":                    false,
		"git-lfs-authenticate team/model.git upload":            false,
		"git-lfs-authenticate team/model.git download\ntouch y": false,
	} {
		if got := remoteCommand.MatchString(command); got != want {
			t.Errorf("%q is allowed: %t, want %t", command, got, want)
		}
	}
}

// TestCleanShowsNoSignature: clean removes credentials and signed URLs.
func TestCleanShowsNoSignature(t *testing.T) {
	keys := newKeyring(Auth{user: "me", password: "se/cret"}, address{scheme: "https", host: "git.example"})
	got := keys.cleanText(`Get "https://store.example/o?X-Amz-Signature=abc&x=1": refused; Basic bWU6c2UvY3JldA==; se%2Fcret; se/cret`)
	if want := `Get "https://store.example/o?...": refused; Basic ***; ***; ***`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestParseAddressRefusesControlCharacters(t *testing.T) {
	for _, url := range []string{"https://git.example/x%0a::error::y", "https://git.example/%1b[2J", "https://git.example/x\u0085y",
		"https://a%0ab@git.example/x"} {
		if _, err := parseAddress(url); err == nil || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q: got %v, want an error on one line", url, err)
		}
	}
	if _, err := parseAddress("me:token@git.example/x"); err == nil || strings.Contains(err.Error(), "token") {
		t.Errorf("a URL without its scheme: got %v, want an error without the token", err)
	}
}

// TestFetchCancelledBefore: git does not start.
func TestFetchCancelledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Fetch(ctx, slog.New(slog.DiscardHandler), t.TempDir(), Source{URL: "https://127.0.0.1:1/x"}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
