// SPDX-License-Identifier: Apache-2.0

package git

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// needLFS skips tests on machines that have only what unit tests need.
func needLFS(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Skip("git-lfs is missing; make setup-tests installs it")
	}
}

func TestFetchLFS(t *testing.T) {
	needLFS(t)
	root := t.TempDir()
	server := newWebServer(t, root)
	repo := newRepository(t, root, "repo")
	weights := server.addObject([]byte("weights"))
	put(t, repo, "model.bin", weights)
	put(t, repo, "copies/run.bin", weights)
	put(t, repo, "data/a", server.addObject([]byte("a")))
	put(t, repo, "data/empty", "")
	put(t, repo, "README", "version https://git-lfs.github.com/spec/v1\nis how a pointer begins\n")
	for _, name := range []string{"b", "c", "d", "e"} {
		put(t, repo, "data/"+name, server.addObject([]byte(name)))
	}
	git(t, repo, "", "add", "-A")
	git(t, repo, "", "update-index", "--chmod=+x", "copies/run.bin")
	git(t, repo, "", "commit", "-q", "-m", "first")
	shell := newSSHServer(t, root)
	shell.lfs = `{"href":"` + server.URL + `/repo/info/lfs","header":{"Authorization":"` + basicHeader() + `"},"expires_in":60}`
	shellAuth, err := shell.goodAuth(t).WithCAFile(server.caFile(t))
	if err != nil {
		t.Fatal(err)
	}
	webAuth := server.goodAuth(t)
	want := map[string]string{
		"README": `false "version https://git-lfs.github.com/spec/v1\nis how a pointer begins\n"`,
		"copies": "folder", "copies/run.bin": `true "weights"`, "model.bin": `false "weights"`,
		"data": "folder", "data/a": `false "a"`, "data/b": `false "b"`, "data/c": `false "c"`,
		"data/d": `false "d"`, "data/e": `false "e"`, "data/empty": `false ""`,
	}
	for name, source := range map[string]Source{
		"https": {URL: server.URL + "/repo", Auth: webAuth, LFS: true},
		"ssh":   {URL: shell.source("repo", "").URL, Auth: shellAuth, LFS: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, log, err := fetchInto(t, source)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, listing(t, dir)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if !strings.Contains(log, "Fetching 6 LFS objects, 12 B, from") {
				t.Errorf("log:\n%s", log)
			}
		})
		t.Run(name+" refused", func(t *testing.T) {
			source.LFS = false
			_, _, _, err := fetchInto(t, source)
			wantFailure(t, err, fail.LFSPointers,
				`7 Git LFS pointers in place of files, for 19 B: "copies/run.bin", "data/a", "data/b", "data/c", "data/d" and 2 more`, "lfs=true")
		})
	}
}

func basicHeader() string {
	r, _ := http.NewRequest(http.MethodGet, "https://git.example/", nil)
	r.SetBasicAuth(testUser, testToken)
	return r.Header.Get("Authorization")
}

func TestFetchLFSFails(t *testing.T) {
	needLFS(t)
	root := t.TempDir()
	server := newWebServer(t, root)
	repo := newRepository(t, root, "repo")
	put(t, repo, "model.bin", server.addObject([]byte("weights")))
	commit(t, repo, "first")
	source := server.source("repo", "")
	source.Auth, source.LFS = server.goodAuth(t), true
	for _, test := range []struct {
		name   string
		answer func(w http.ResponseWriter, id string, try int)
		text   string // part of the error, "" for no error
	}{
		{"refused", func(w http.ResponseWriter, _ string, _ int) { http.Error(w, "no, "+testToken, http.StatusForbidden) },
			"Authorization error"},
		{"wrong content", func(w http.ResponseWriter, _ string, _ int) { _, _ = w.Write([]byte("weighty")) }, "after 7 bytes written"},
		{"too much", func(w http.ResponseWriter, _ string, _ int) { _, _ = w.Write(make([]byte, 1<<20)) }, "expected OID"},
		{"better the second time", func(w http.ResponseWriter, id string, try int) {
			if try == 1 {
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(server.objects[id])
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			tries := 0
			server.lfsAnswer = func(w http.ResponseWriter, id string) { tries++; test.answer(w, id, tries) }
			_, _, _, err := fetchInto(t, source)
			if test.text != "" {
				wantFailure(t, err, fail.LFSPointers, test.text, "")
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("over its quota", func(t *testing.T) {
		server.lfsBatch = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"message": "This repository exceeded its LFS budget."}`))
		}
		defer func() { server.lfsBatch = nil }()
		_, _, _, err := fetchInto(t, source)
		wantFailure(t, err, fail.LFSPointers, "exceeded its LFS budget", "quota of the repository's owner")
	})
	t.Run("missing", func(t *testing.T) {
		clear(server.objects)
		_, _, _, err := fetchInto(t, source)
		wantFailure(t, err, fail.LFSPointers, "Object does not exist", "git lfs push --all origin")
	})
}

// TestFetchLFSIsBounded: an answer without an end ends in a message, not in the loss of the container.
func TestFetchLFSIsBounded(t *testing.T) {
	if underRace() {
		t.Skip("the race detector does not fit into the limit")
	}
	root := t.TempDir()
	server := newWebServer(t, root)
	repo := newRepository(t, root, "repo")
	put(t, repo, "model.bin", server.addObject([]byte("weights")))
	commit(t, repo, "first")
	endless := func(w http.ResponseWriter, begin, each string) {
		w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
		_, err := w.Write([]byte(begin))
		for more := []byte(strings.Repeat(each, 1<<16)); err == nil; {
			_, err = w.Write(more)
		}
	}
	for name, answer := range map[string]func(w http.ResponseWriter){
		"a list": func(w http.ResponseWriter) { endless(w, `{"objects":[{}`, `,{"oid":"0","size":1}`) },
		"a word": func(w http.ResponseWriter) { endless(w, `{"transfer":"`, "xxxxxxxxxxxxxxxx") },
	} {
		t.Run(name, func(t *testing.T) {
			server.lfsBatch = answer
			source := server.source("repo", "")
			source.Auth, source.LFS, source.limits = server.goodAuth(t), true, usualLimits
			const memoryOfGitLFS = 256 << 20
			source.limits.memory = memoryOfGitLFS
			_, _, _, err := fetchInto(t, source)
			wantFailure(t, err, fail.LFSPointers, "git-lfs needs more than 256 MiB of memory", "LFS server")
		})
	}
}

// The fetch uses the LFS server of .lfsconfig, but another host gets no credentials.
func TestFetchLFSConfig(t *testing.T) {
	needLFS(t)
	root := t.TempDir()
	server, store := newWebServer(t, root), newWebServer(t, root)
	store.open = true
	repo := newRepository(t, root, "repo")
	put(t, repo, "model.bin", store.addObject([]byte("weights")))
	put(t, repo, ".lfsconfig", "[lfs]\n\turl = "+store.URL+"/store/info/lfs\n")
	commit(t, repo, "first")
	source := server.source("repo", "")
	source.Auth, source.LFS = server.goodAuth(t), true
	dir, _, _, err := fetchInto(t, source)
	if err != nil {
		t.Fatal(err)
	}
	if got := listing(t, dir)["model.bin"]; got != `false "weights"` {
		t.Errorf("model.bin: got %s", got)
	}
	if len(store.seen) > 0 {
		t.Errorf("another host got credentials: %q", store.seen)
	}
}

func TestParsePointer(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for _, test := range []struct {
		name, text string
		want       pointer
		ok         bool
	}{
		{"usual", pointerTo(id, 12345), pointer{id, 12345}, true},
		{"with an extension", "version https://git-lfs.github.com/spec/v1\next-0-foo sha256:" + id + "\noid sha256:" + id + "\nsize 1\n",
			pointer{id, 1}, true},
		{"old name", strings.Replace(pointerTo(id, 1), "git-lfs.github.com", "hawser.github.com", 1), pointer{id, 1}, true},
		{"no size", "version https://git-lfs.github.com/spec/v1\noid sha256:" + id + "\n\n", pointer{}, false},
		{"other hash", "version https://git-lfs.github.com/spec/v1\noid md5:" + id + "\nsize 1\n", pointer{}, false},
		{"a path for an id", "version https://git-lfs.github.com/spec/v1\noid sha256:../../etc\nsize 1\n", pointer{}, false},
		{"negative", pointerTo(id, -1), pointer{}, false},
		{"too long", pointerTo(id, 1) + strings.Repeat("\n", MaxPointer), pointer{}, false},
		{"text", "hello\n", pointer{}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := parsePointer([]byte(test.text))
			if ok != test.ok || ok && got != test.want {
				t.Errorf("got %v, %t: want %v, %t", got, ok, test.want, test.ok)
			}
		})
	}
}

func TestLFSEndpoint(t *testing.T) {
	for repository, want := range map[string]string{
		"https://git.example/team/repo":          "https://git.example/team/repo.git/info/lfs",
		"https://git.example:8443/team/repo.git": "https://git.example:8443/team/repo.git/info/lfs",
	} {
		a, err := parseAddress(repository)
		if err != nil {
			t.Fatal(err)
		}
		if got := lfsEndpoint(a).String(); got != want {
			t.Errorf("%s: got %s: want %s", repository, got, want)
		}
	}
}
