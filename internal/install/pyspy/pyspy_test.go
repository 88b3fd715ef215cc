// SPDX-License-Identifier: Apache-2.0

package pyspy

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
)

// TestRefuses: only a locked wheel is accepted. The end-to-end tests fetch the real one.
func TestRefuses(t *testing.T) {
	lock, err := fs.ReadFile(mldevenv.Images(), lockFile)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^py-spy==\S+ --hash=sha256:(\S+)`).FindStringSubmatch(string(lock))
	if found == nil {
		t.Fatal("the lock has no py-spy")
	}
	locked, other := found[1], strings.Repeat("0", 64)
	for name, test := range map[string]struct{ page, want string }{
		"no page": {"", "/py-spy/ answers 404 Not Found"},
		"another wheel": {`<a href="../py_spy-0-none-manylinux1_x86_64.whl#sha256=` + other + `">`,
			"has no wheel with a hash of cpu/lock.txt"},
		"another platform": {`<a href="../py_spy-0-none-manylinux1_riscv64.whl#sha256=` + locked + `">`,
			"has no wheel with a hash of cpu/lock.txt"},
		"another content": {`<a href="../py_spy-0-none-manylinux1_x86_64.whl#sha256=` + locked + `">`,
			"py_spy-0-none-manylinux1_x86_64.whl has another hash than cpu/lock.txt"},
		"wheel not there": {`<a href="../missing/py_spy-0-none-manylinux1_x86_64.whl#sha256=` + locked + `">`, "answers 404 Not Found"},
		"address of a file": {`<a href="file:///py_spy-0-none-manylinux1_x86_64.whl#sha256=` + locked + `">`,
			`unsupported protocol scheme "file"`},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/simple/py-spy/" && test.page != "":
					fmt.Fprint(w, test.page)
				case r.URL.Path == "/simple/py_spy-0-none-manylinux1_x86_64.whl":
					fmt.Fprint(w, "not the wheel")
				default:
					http.NotFound(w, r)
				}
			}))
			defer server.Close()
			t.Setenv("PIP_INDEX_URL", server.URL+"/simple")
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			err := Write(t.Context(), t.TempDir(), t.TempDir(), "linux/amd64")
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
		})
	}
}
