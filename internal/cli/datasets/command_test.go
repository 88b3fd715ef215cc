// SPDX-License-Identifier: Apache-2.0

package datasets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

func TestParse(t *testing.T) {
	dir := t.TempDir()
	list := filepath.Join(dir, "urls.txt")
	sum := strings.Repeat("0A", 32)
	text := "# comment\n\nhttps://example.com/a/b.zip\nhttps://example.com/c " + sum + " deep/c.bin\n"
	if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	o := options{to: "/datasets/text", list: list}
	if err := o.parse([]string{dir, "http://example.com/d.tar"}); err != nil {
		t.Fatal(err)
	}
	want := []agent.Download{
		{URL: "http://example.com/d.tar", Path: "d.tar"}, {URL: "https://example.com/a/b.zip", Path: "b.zip"},
		{URL: "https://example.com/c", Path: "deep/c.bin", Content: tree.Digest(strings.ToLower(sum))},
	}
	if diff := cmp.Diff(want, o.remote); diff != "" {
		t.Errorf("downloads (-want +got):\n%s", diff)
	}
	here := options{to: "."}
	if err := here.parse([]string{"."}); err != nil || filepath.Base(here.local[0]) != "datasets" {
		t.Errorf("%v, %v; want this folder by its name", here.local, err)
	}
	if o.to != "text" || len(o.local) != 1 {
		t.Errorf("to %q and %v, want text and the folder", o.to, o.local)
	}
}

func TestMistakes(t *testing.T) {
	list := filepath.Join(t.TempDir(), "urls.txt")
	text := "https://example.com/a\nnone\nhttps://example.com/b short\nhttps://example.com/c " + strings.Repeat("0", 64) +
		" ../c\nhttps://example.com/a?again\n1 2 3 4\n"
	if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	o := options{to: "../up", list: list}
	err := o.parse([]string{"/is/not/there", "https://me:secret@example.com/x"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`--to "../up"`, `"/is/not/there"`, "a user or password", "urls.txt:2: ", "urls.txt:3: SHA-256", "urls.txt:4: ", "urls.txt:6: 4 words",
		"https://example.com/a and https://example.com/a?again: both would be a",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password is printed: %v", err)
	}
	if err := (&options{to: "."}).parse(nil); err == nil {
		t.Error("nothing to put there: no error")
	}
}
