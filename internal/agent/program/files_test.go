// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

func write(t *testing.T, dir string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the contents of the files in a folder, by path.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		found[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// send does what mlenv does with a folder: it asks which contents are missing, and sends those.
func send(t *testing.T, from, to string, damage func([]byte) []byte) (landed string, err error) {
	t.Helper()
	m, err := tree.Scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	header, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Files([]string{"missing", to}, bytes.NewReader(header), &out); err != nil {
		t.Fatal(err)
	}
	var missing []tree.Digest
	if err := json.Unmarshal(out.Bytes(), &missing); err != nil {
		t.Fatal(err)
	}
	in := bytes.NewBuffer(append(header, '\n'))
	if err := tree.WriteContents(t.Context(), in, from, m, missing); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	err = Files([]string{"land", to}, bytes.NewReader(damage(in.Bytes())), &out)
	return strings.TrimSpace(out.String()), err
}

func whole(content []byte) []byte { return content }

func TestLandFiles(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "folder")
	content := map[string]string{"a.txt": "first", "deep/b.txt": "second", "deep/same.txt": "second"}
	write(t, from, content)
	if landed, err := send(t, from, to, whole); err != nil || landed != "3" {
		t.Fatalf("%s files landed, %v, want 3", landed, err)
	}
	write(t, to, map[string]string{"other": "stays"})
	write(t, from, map[string]string{"a.txt": "changed"})
	if landed, err := send(t, from, to, whole); err != nil || landed != "1" {
		t.Errorf("%s files landed after one had changed, %v, want 1", landed, err)
	}
	content["a.txt"], content["other"] = "changed", "stays"
	if diff := cmp.Diff(content, read(t, to)); diff != "" {
		t.Errorf("the folder (-want +got):\n%s", diff)
	}
}

// A copy that breaks off or is damaged leaves no file under the final name, and continues the next time.
func TestLandFilesBroken(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"broken off": func(content []byte) []byte { return content[:len(content)-3] },
		"damaged":    func(content []byte) []byte { return append(content[:len(content)-3], "xyz"...) },
	} {
		t.Run(name, func(t *testing.T) {
			from, to := t.TempDir(), t.TempDir()
			write(t, from, map[string]string{"a.txt": "the whole content"})
			if _, err := send(t, from, to, damage); err == nil {
				t.Error("no error")
			}
			if diff := cmp.Diff(map[string]string{}, read(t, to)); diff != "" {
				t.Errorf("the folder (-want +got):\n%s", diff)
			}
			if landed, err := send(t, from, to, whole); err != nil || landed != "1" {
				t.Errorf("%s files landed the next time, %v, want 1", landed, err)
			}
		})
	}
}

func TestDownload(t *testing.T) {
	content := strings.Repeat("0123456789", 1000)
	sum := sha256.Sum256([]byte(content))
	digest := tree.Digest(hex.EncodeToString(sum[:]))
	var ranges []string
	cut := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ranges = append(ranges, r.Header.Get("Range"))
		if cut {
			w.Header().Set("Content-Length", "10000")
			_, _ = w.Write([]byte(content[:4000]))
			return // the server closes a connection whose answer is too short
		}
		if r.URL.Path != "/data" {
			http.NotFound(w, r)
			return
		}
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") { // as servers do that take data.gz for compressed data
			w.Header().Set("Content-Encoding", "gzip")
		}
		http.ServeContent(w, r, "data", time.Time{}, strings.NewReader(content))
	}))
	defer server.Close()
	dir := t.TempDir()
	const timeForTheNextByte = time.Minute
	get := func(wanted ...agent.Download) (string, error) {
		ranges = nil
		var out strings.Builder
		err := download(context.Background(), dir, wanted, timeForTheNextByte, &out)
		return out.String(), err
	}
	one := agent.Download{URL: server.URL + "/data", Path: "in/data.bin", Content: digest}

	cut = true
	if _, err := get(one); err == nil || !strings.Contains(err.Error(), "broke off after 4.0 kB") {
		t.Errorf("an answer that is too short: %v", err)
	}
	cut = false
	said, err := get(one)
	if want := string(digest) + "  in/data.bin, 10.0 kB\n"; err != nil || said != want {
		t.Errorf("continuing: %q, %v, want %q", said, err, want)
	}
	if diff := cmp.Diff([]string{"bytes=4000-"}, ranges); diff != "" {
		t.Errorf("requested ranges (-want +got):\n%s", diff)
	}
	if _, err := get(one); err != nil || len(ranges) > 0 {
		t.Errorf("again: %v, %d requests, want none", err, len(ranges))
	}
	wrong := agent.Download{URL: one.URL, Path: "wrong", Content: tree.Digest(strings.Repeat("0", 64))}
	_, err = get(wrong, agent.Download{URL: server.URL + "/none", Path: "none"}, agent.Download{URL: one.URL, Path: "any"})
	for _, want := range []string{"it has SHA-256 " + string(digest), "404 Not Found"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	got := read(t, dir)
	delete(got, tree.Partial+"none") // it is empty
	if diff := cmp.Diff(map[string]string{"in/data.bin": content, "any": content}, got); diff != "" {
		t.Errorf("the folder (-want +got):\n%s", diff)
	}
}
