// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"os"
	"path/filepath"
	"regexp"
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
		} else if f[2] != "" && !declares(string(content), f[2]) {
			t.Errorf("%s does not declare %s", f[1], f[2])
		}
	}
}

// declares reports whether Go code declares a function, a method, a type, a constant or a variable of that name.
func declares(code, name string) bool {
	return regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|type |const |var |\t)` + name + `(?:\[|\(| )`).MatchString(code)
}
