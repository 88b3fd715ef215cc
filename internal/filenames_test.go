// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// installable matches a name that Go accepts in a module. The quotes, for example, are not in it (golang.org/x/mod/module:CheckFilePath).
var installable = regexp.MustCompile(`^[\w!#$%&()+,\-.=@\[\]^{}~ ]*[^. ]$`)

// TestFileNames: go install refuses the whole module because of one file with another name.
func TestFileNames(t *testing.T) {
	files := 0
	seen := map[string]string{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == ".." {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && (name == ".git" || name == "bin" || name == "dist" || isModule(path)) {
			return filepath.SkipDir
		}
		files++
		if !installable.MatchString(name) {
			t.Errorf("%s: want only letters, digits and the punctuation that go install accepts", path)
		}
		if other := seen[strings.ToLower(path)]; other != "" {
			t.Errorf("%s and %s differ only in case, which go install refuses", path, other)
		}
		seen[strings.ToLower(path)] = path
		return nil
	})
	if err != nil || files < 1000 {
		t.Errorf("looked at %d files, %v: want those of the repository", files, err)
	}
}

// isModule reports whether a folder is another module, which go install does not download.
func isModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
}
