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

// ofLauncher are the packages of launchers' own programs.
var ofLauncher = map[agent.Launcher]string{agent.TorchrunLauncher: "torch", agent.DeepSpeedLauncher: "deepspeed"}

// lacksPackages returns the error for a Python that is missing, and for packages that the launcher needs or the script imports, itself or
// by modules of the folder, and that Python does not find.
func lacksPackages(ctx context.Context, python, dir string, o train.Options, installs bool) error {
	if python == "" && (o.Launcher != agent.Command || agent.IsPython(o.Script)) {
		path, _ := agent.Variable(slices.Concat(o.Env, os.Environ()), "PATH")
		if _, err := agent.FindProgram("python3", path); err != nil {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "starting the ranks: there is no python3 in PATH (%s)", path),
				"install python3, or add --python=venv/bin/python3, its path in a virtual environment")
		}
	}
	var files []string
	if agent.IsPython(o.Script) {
		files = []string{o.Script}
		if module := agent.Module(o.Script); module != "" {
			files = agent.ModuleFiles(module)
		}
	}
	launcher := ofLauncher[o.Launcher]
	if installs || launcher == "" && files == nil {
		return nil
	}
	python = cmp.Or(python, "python3")
	program := python
	if filepath.Base(python) != python { // the program runs in another folder
		var err error
		if program, err = filepath.Abs(python); err != nil {
			return err
		}
	}
	pythonPath, _ := agent.Variable(slices.Concat(o.Env, os.Environ()), "PYTHONPATH")
	const patience = 20 * time.Second // for python to look for the imports of a script
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	command := exec.CommandContext(ctx, program, append([]string{"-I", "-c", findImports, dir, launcher, pythonPath}, files...)...)
	command.Dir, command.Env = dir, append(os.Environ(), o.Env...)
	out, err := command.Output()
	if err != nil {
		return nil // the nodes report a Python that does not start
	}
	var packages, imports, needs []string
	managed := false
	for line := range strings.Lines(string(out)) {
		name, place, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch place {
		case "":
			managed = true
			continue
		case "launcher":
			needs = []string{fmt.Sprintf("launcher %s needs %s", o.Launcher, name)}
		default:
			imports = append(imports, fmt.Sprintf("%s (%s)", name, place))
		}
		packages = append(packages, cmp.Or(projects[name], name))
	}
	if len(packages) == 0 {
		return nil
	}
	if len(imports) > 0 {
		needs = append([]string{o.Script + " imports " + strings.Join(imports, " and ")}, needs...)
	}
	install := "-m pip install " + strings.Join(packages, " ")
	next := python + " " + install
	if managed {
		next = fmt.Sprintf("%s -m venv venv && venv/bin/python3 %s   # then add --python=venv/bin/python3", python, install)
	}
	for _, folder := range slices.Compact([]string{path.Dir(append(files, ".")[0]), "."}) {
		list := path.Join(folder, "requirements.txt")
		if _, err := os.Stat(filepath.Join(dir, list)); err == nil {
			next += fmt.Sprintf("   # or add --requirements=%s, which installs into an environment of its own", list)
			break
		}
	}
	return fail.Advise(fail.Becausef(fail.InvalidInput, "%s, which %s does not have", strings.Join(needs, ", and "), python), "%s", next)
}
