// SPDX-License-Identifier: Apache-2.0

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

// noSecret is the value of a Task's param for no Secret.
const noSecret = "none"

// Read reads a mounted Secret, which has a file for each key in a folder of the Secret's name. A missing Secret is
// InvalidInput, because the Task mounts it as optional.
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
		// ..data and others are the kubelet's links to versions.
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
