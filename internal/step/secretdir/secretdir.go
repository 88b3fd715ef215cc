// Package secretdir reads a Secret that a Task has mounted as a folder.
package secretdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// noSecret is the name that a Task's param has where no Secret is meant.
const noSecret = "none"

// Read reads a mounted Secret, a file a key. The folder bears the
// Secret's name: one that was named and is not there is InvalidInput, because the
// Task mounts it as optional and the pod starts without.
func Read(dir string) (map[string]string, error) {
	name := filepath.Base(dir)
	if dir == "" || name == noSecret {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the mounted Secret %s: %w", name, err)
	}
	values := map[string]string{}
	for _, entry := range entries {
		// ..data and its like are how the kubelet switches versions.
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		value, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading the mounted Secret %s: %w", name, err)
		}
		values[entry.Name()] = strings.TrimSuffix(string(value), "\n")
	}
	if len(values) == 0 {
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "reading Secret %s: it does not exist in this namespace, or has no keys", name),
			"oc create secret generic %s --from-literal=KEY=VALUE, or leave the param at its default, %s", name, noSecret)
	}
	return values, nil
}
