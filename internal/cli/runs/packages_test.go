// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestWarnPackages(t *testing.T) {
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/wandb/" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		fmt.Fprint(w, `{"versions": ["0.20"]}`)
	}))
	defer index.Close()
	for _, name := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"} {
		t.Setenv(name, "") // this machine may have them
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"requirements.txt": "-i " + index.URL + "\nwandb\n-r more/dev.txt\n",
		"more/dev.txt": "wanbd\n-r ../requirements.txt\n-r ../../outside.txt\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	warnPackages(t.Context(), &out, index.Client(), dir, "requirements.txt")
	if want := "warning: requirements.txt: \"wanbd\": no package of that name at " + index.URL + "\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	out.Reset()
	index.Close()
	warnPackages(t.Context(), &out, index.Client(), dir, "requirements.txt")
	if out.Len() > 0 {
		t.Errorf("without an answer it printed %q", out.String())
	}
}
