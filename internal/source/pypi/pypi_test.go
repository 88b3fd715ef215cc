// SPDX-License-Identifier: Apache-2.0

package pypi

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// TestVersionsAreOrdered has the order of PEP 440.
func TestVersionsAreOrdered(t *testing.T) {
	ordered := []string{
		"1.dev0", "1.0.dev456", "1.0a1", "1.0a2.dev456", "1.0a12.dev456", "1.0a12", "1.0b1.dev456", "1.0b2", "1.0b2.post345.dev456",
		"1.0b2.post345",
		"1.0rc1.dev456", "1.0rc1", "1.0", "1.0.post456.dev34", "1.0.post456", "1.0.15", "1.1.dev1", "1.10", "2!0.1",
	}
	for i, a := range ordered {
		for j, b := range ordered {
			first, ok := parseVersion(a)
			second, also := parseVersion(b)
			if got := first.compare(second); !ok || !also || got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("comparing %s with %s: %d", a, b, got)
			}
		}
	}
	for _, text := range []string{"", "x", "1.0-x", "2025-01", "1..0", "1.0+", "99999999999999999999999.0x"} {
		if _, ok := parseVersion(text); ok && text != "2025-01" { // 2025.post1
			t.Errorf("%q is taken for a version", text)
		}
	}
}

func TestSpecifiers(t *testing.T) {
	for _, tc := range []struct {
		specifier string
		allows    []string
		refuses   []string
	}{
		{"==2.4", []string{"2.4", "2.4.0", "v2.4", "2.4+cu128"}, []string{"2.4.1", "2.4rc1", "2.4.post1"}},
		{"==2.4.*", []string{"2.4", "2.4.1", "2.4rc1"}, []string{"2.40", "2.5", "1!2.4"}},
		{"!=2.4.*", []string{"2.5"}, []string{"2.4.1"}},
		{"~=2.4.1", []string{"2.4.1", "2.4.9"}, []string{"2.4.0", "2.5"}},
		{"~=2.4", []string{"2.4", "2.9"}, []string{"3.0", "2.3"}},
		{">=2.4", []string{"2.4", "3"}, []string{"2.4rc1", "2.3"}},
		{"<3", []string{"2.99"}, []string{"3.0", "3.0rc1", "3.1"}},
		{">1.7", []string{"1.7.1", "1.8"}, []string{"1.7", "1.7.0.post1"}},
		{"<=2", []string{"2.0", "1.9"}, []string{"2.0.1"}},
		{"===1.0-x", []string{"1.0-X"}, []string{"1.0"}},
	} {
		s, ok := parseSpecifier(tc.specifier)
		if !ok {
			t.Errorf("%s is not understood", tc.specifier)
		}
		for _, version := range tc.allows {
			if !s.allows(version) {
				t.Errorf("%s refuses %s", tc.specifier, version)
			}
		}
		for _, version := range tc.refuses {
			if s.allows(version) {
				t.Errorf("%s allows %s", tc.specifier, version)
			}
		}
	}
	for _, text := range []string{"2.4", "=2.4", "~=2", "==x", ">=2.*"} {
		if _, ok := parseSpecifier(text); ok {
			t.Errorf("%q is taken for a specifier", text)
		}
	}
}

const requirements = `# what we need
--extra-index-url https://user:secret@mirror.example.com/simple
-r more.txt
-c constraints.txt
transformers[torch] == 4.57.*, != 4.57.2  # a comment
Typing_Extensions>=4; python_version < "3.13"
nump\
y>=2 --hash=sha256:abc
wandb
torch==2.9.0a0+nv25.10
mine @ git+https://example.com/mine
git+https://example.com/theirs#egg=theirs
./local
-e .
https://example.com/a.whl
ruff (>=0.5)
${PRIVATE}
name with spaces
`

func TestParse(t *testing.T) {
	all, settings, includes := Parse(requirements)
	var names []string
	for _, r := range all {
		names = append(names, r.Name)
	}
	if diff := cmp.Diff([]string{"transformers", "numpy", "wandb", "ruff"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Settings{Extra: []string{"https://user:secret@mirror.example.com/simple"}}, settings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !slices.Equal(includes, []string{"more.txt"}) {
		t.Errorf("it includes %q", includes)
	}
	if !all[0].satisfiedBy("4.57.1") || all[0].satisfiedBy("4.57.2") || all[0].satisfiedBy("4.56") {
		t.Errorf("%+v has other conditions", all[0])
	}
	_, settings, _ = Parse("-i https://a.example.com/simple\n--find-links=wheels\n")
	if settings.Index != "https://a.example.com/simple" || !settings.Elsewhere {
		t.Errorf("got %+v", settings)
	}
	settings = Settings{}.FromEnvironment([]string{"PIP_INDEX_URL=https://b.example.com", "PIP_EXTRA_INDEX_URL=https://c https://d",
		"PATH=/bin"})
	if diff := cmp.Diff(Settings{Index: "https://b.example.com", Extra: []string{"https://c", "https://d"}}, settings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// index returns a package index with certificates of its own authority.
func index(t *testing.T, asJSON bool) (*httptest.Server, *http.Client) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch name := strings.Trim(strings.TrimPrefix(r.URL.Path, "/simple"), "/"); {
		case user != "me" || password != "secret":
			w.WriteHeader(http.StatusUnauthorized)
		case name == "broken":
			w.WriteHeader(http.StatusBadGateway)
		case name == "login":
			fmt.Fprint(w, "<html>please log in</html>")
		case name != "some-package":
			w.WriteHeader(http.StatusNotFound)
		case asJSON:
			w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			fmt.Fprint(w, `{"versions": ["1.0", "1.10"], "files": [{"filename": "some_package-1.9-py3-none-any.whl"}]}`)
		default:
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<a href="x#sha256=1" data-requires-python="&gt;=3.8">some-package-1.0.tar.gz</a><br/>
<A HREF="y">some_package-1.9-cp312-cp312-manylinux_2_28_x86_64.whl</A><a href="z">Some.Package-1.10.zip</a>`)
		}
	}))
	t.Cleanup(server.Close)
	bundle := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	return server, &http.Client{Transport: command.Transport(bundle)}
}

func TestLocal(t *testing.T) {
	for _, line := range []string{
		"-e .", "--editable=.[dev]", "-e ./pkg#egg=pkg", "-e pkg", "-e file:.", "-e file:///workspace/pkg",
		".", "./pkg", "../pkg", "pkg/core", "~/pkg", ".[dev,test]",
		"einops\n-e .\n", "pkg @ file:./pkg", "pkg[a] @ file:///workspace/pkg ; python_version > '3.8'", "file:pkg",
		"wheels/a-1-py3-none-any.whl", "a-1-py3-none-any.whl",
		"a-1.tar.gz", "-f ./wheels", "--find-links wheels", "-f file:wheels", "-e git+file:///workspace/pkg", `-e "./my pkg"`, "-e \\\n .",
		"${ROOT}/pkg", "  -e .  # this one",
	} {
		if !Local(line) {
			t.Errorf("%q is not local, want local", line)
		}
	}
	for _, line := range []string{
		"", "# -e .", "einops==0.8.1", "einops[a,b]>=1.0,<2 ; sys_platform == 'linux'",
		"-r sub/requirements.txt", "--constraint=./constraints.txt", "-i https://example.org/simple/",
		"--extra-index-url https://example.org/a/b", "-e git+https://example.org/a/b.git@main#egg=b",
		"b @ https://example.org/b-1-py3-none-any.whl", "https://example.org/b-1.zip",
		"b @ git+ssh://git@example.org/a/b", "-f https://example.org/wheels/", "einops==0.8.1 --hash=sha256:ab/c", "--no-binary :all:",
		"zope.interface", "ruamel.yaml.zip-tools",
	} {
		if Local(line) {
			t.Errorf("%q is local, want an index or a URL", line)
		}
	}
}

func TestAsk(t *testing.T) {
	for _, asJSON := range []bool{true, false} {
		server, client := index(t, asJSON)
		settings := Settings{Index: strings.Replace(server.URL, "https://", "https://me:secret@", 1) + "/simple"}
		all, _, _ := Parse("some-package>=1.9\nsome_package==1.9\nSome.Package==2.*\nno-such-package\nbroken\nlogin\n")
		answer := Ask(t.Context(), client, settings, all)
		if answer.Found != 2 || answer.Unknown != 2 || answer.Why == nil || strings.Contains(answer.Why.Error(), "secret") {
			t.Errorf("JSON %t: got %+v", asJSON, answer)
		}
		var problems []string
		for _, p := range answer.Problems {
			problems = append(problems, fmt.Sprintf("%s: %s, %t", p.Requirement.Text, p.Seen, p.NoName))
		}
		want := []string{
			"Some.Package==2.*: " + server.URL + "/simple has no such version; the newest are 1.10, 1.9, 1.0, false",
			"no-such-package: no package of that name at " + server.URL + "/simple, true",
		}
		if diff := cmp.Diff(want, problems); diff != "" {
			t.Errorf("JSON %t (-want +got):\n%s", asJSON, diff)
		}
		// Without the authority, or with an extra index that does not answer, nothing is known.
		for _, unknown := range []Answer{
			Ask(t.Context(), http.DefaultClient, settings, all[2:4]),
			Ask(t.Context(), client, Settings{Index: settings.Index, Extra: []string{"https://127.0.0.1:1/simple"}}, all[2:4]),
		} {
			if len(unknown.Problems) > 0 || unknown.Unknown != 2 {
				t.Errorf("got %+v, want nothing known", unknown)
			}
		}
	}
}

// An index that does not answer in time is no problem of a requirement.
func TestAskEnds(t *testing.T) {
	asked := make(chan struct{}, atOnce)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	all, _, _ := Parse("a\nb\nc\nd\ne\nf\n")
	if answer := Ask(ctx, silent.Client(), Settings{Index: silent.URL}, all); answer.Unknown != len(all) || len(answer.Problems) > 0 {
		t.Errorf("got %+v, want all unknown", answer)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(requirements)
	f.Add("a==1!2.0.*\n-r\n--index-url\n")
	f.Fuzz(func(t *testing.T, content string) {
		all, _, _ := Parse(content)
		for _, r := range all {
			if r.Name == "" || strings.ContainsAny(r.Name, "/ _") {
				t.Errorf("%q gives the name %q", content, r.Name)
			}
			r.satisfiedBy("1.0")
		}
	})
}
