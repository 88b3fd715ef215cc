// SPDX-License-Identifier: Apache-2.0

// Package pylib has the modules that the agent gives to every Python of its jobs, shells and services: mlenv for those who import it, and a
// sitecustomize that records the error which ends a rank and shows what frameworks do.
package pylib

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
)

//go:embed mlenv.py mlenv_frameworks.py sitecustomize.py
var files embed.FS

// Values of the param hook.
const (
	// Auto is a sitecustomize that works.
	Auto = "auto"
	// None is one that does nothing: no error is recorded, and frameworks are left alone.
	None = "none"
)

// Variables of the hook.
const (
	// HookVariable is Auto, as by default, or None.
	HookVariable = "MLENV_HOOK"
	// ErrorsVariable is the folder into which it writes errors.
	ErrorsVariable = "MLENV_ERRORS"
	// AutoVariable is set for ranks of launcher auto: to the process that started the rank, whose parser gets --local_rank if it takes that.
	AutoVariable = "MLENV_AUTO_LAUNCHER"
)

// Write puts the modules into a folder.
func Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		return record.WriteFile(filepath.Join(dir, name), content)
	})
}

// AddTo puts the folder first into PYTHONPATH.
func AddTo(env map[string]string, dir string) {
	// An empty entry would be the current folder.
	env["PYTHONPATH"] = strings.TrimSuffix(dir+":"+env["PYTHONPATH"], ":")
}
