// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// FindProgram looks a program up in path, the PATH of the process to start. Its error wraps fs.ErrNotExist.
func FindProgram(name, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("finding %s: %w", name, fs.ErrNotExist)
}

// Environ returns variables in the form of os.Environ, sorted.
func Environ(variables map[string]string) (environ []string) {
	for name, value := range variables {
		environ = append(environ, name+"="+value)
	}
	slices.Sort(environ)
	return environ
}

// Variable looks up a variable in environ, which has the form of os.Environ.
func Variable(environ []string, name string) (value string, set bool) {
	for _, entry := range environ {
		if value, set = strings.CutPrefix(entry, name+"="); set {
			return value, true
		}
	}
	return "", false
}
