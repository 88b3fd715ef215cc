// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorder keeps the errors of a test.
type recorder struct {
	testing.TB

	errors []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// TestFolder: a file that nothing generates is an error; -update deletes it.
func TestFolder(t *testing.T) {
	defer func(before bool) { *update = before }(*update)
	folder := t.TempDir()
	stale := filepath.Join(folder, "stale.md")
	for _, path := range []string{filepath.Join(folder, "a.md"), stale} {
		if err := os.WriteFile(path, []byte("a"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, *update = range []bool{false, true} {
		r := &recorder{TB: t}
		Folder(r, folder, map[string]string{"a.md": "a"})
		_, err := os.Stat(stale)
		if *update != os.IsNotExist(err) || *update != (len(r.errors) == 0) || !*update && !strings.Contains(r.errors[0], stale) {
			t.Errorf("with -update=%t got %v and errors %q; want stale.md reported without -update, and deleted with it", *update, err, r.errors)
		}
	}
}
