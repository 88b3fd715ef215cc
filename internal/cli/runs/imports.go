// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	_ "embed" // the program that reads imports
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// findImports is the program that prints which packages a script of a folder imports and Python lacks.
//
//go:embed imports.py
var findImports string

// projects are packages that have another name on PyPI.
var projects = map[string]string{
	"PIL": "pillow", "cv2": "opencv-python", "dotenv": "python-dotenv", "hydra": "hydra-core", "skimage": "scikit-image",
	"sklearn": "scikit-learn", "yaml": "pyyaml",
}

// lacksPackages returns the error for a Python that is missing, and for packages that the script imports, itself or by modules of the
// folder, and that Python does not find.
func lacksPackages(ctx context.Context, python, dir string, o train.Options, installs bool) error {
	if python == "" && (o.Launcher != agent.Command || agent.IsPython(o.Script)) {
		path, _ := agent.Variable(slices.Concat(o.Env, os.Environ()), "PATH")
		if _, err := agent.FindProgram("python3", path); err != nil {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "starting the ranks: there is no python3 in PATH (%s)", path),
				"install python3, or add --python=venv/bin/python3, its path in a virtual environment")
		}
	}
	if installs || !agent.IsPython(o.Script) {
		return nil
	}
	files := []string{o.Script}
	if module := agent.Module(o.Script); module != "" {
		files = agent.ModuleFiles(module)
	}
	python = cmp.Or(python, "python3")
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	command := exec.CommandContext(ctx, python, append([]string{"-c", findImports, dir}, files...)...)
	command.Dir, command.Env = dir, append(os.Environ(), o.Env...)
	out, err := command.Output()
	if err != nil {
		return nil // the nodes report a Python that does not start
	}
	var packages, places []string
	for line := range strings.Lines(string(out)) {
		name, place, _ := strings.Cut(strings.TrimSpace(line), " ")
		packages = append(packages, cmp.Or(projects[name], name))
		places = append(places, fmt.Sprintf("%s (%s)", name, place))
	}
	if len(packages) == 0 {
		return nil
	}
	next := fmt.Sprintf("%s -m pip install %s", python, strings.Join(packages, " "))
	for _, folder := range slices.Compact([]string{path.Dir(files[0]), "."}) {
		list := path.Join(folder, "requirements.txt")
		if _, err := os.Stat(filepath.Join(dir, list)); err == nil {
			next += fmt.Sprintf("   # or add --requirements=%s, which installs into an environment of its own", list)
			break
		}
	}
	return fail.Advise(fail.Becausef(fail.InvalidInput, "%s imports %s, which %s does not have", o.Script, strings.Join(places, " and "),
		python), "%s", next)
}
