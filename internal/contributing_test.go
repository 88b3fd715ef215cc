package internal

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// place matches a file that CONTRIBUTING.md names, and the name in that file after it, if there is one.
var place = regexp.MustCompile("`([a-z][a-z0-9-]*/[a-z0-9/_-]+\\.[a-z]+)`(?:, `([A-Za-z]+)`)?")

// TestContributingNames fails if a file or name that CONTRIBUTING.md sends readers to does not exist.
func TestContributingNames(t *testing.T) {
	page, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	found := place.FindAllStringSubmatch(string(page), -1)
	if len(found) < 20 {
		t.Errorf("found %d files, want those of both ways", len(found))
	}
	for _, f := range found {
		content, err := os.ReadFile(filepath.Join("..", f[1]))
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(content), f[2]) {
			t.Errorf("%s has no %s", f[1], f[2])
		}
	}
}
