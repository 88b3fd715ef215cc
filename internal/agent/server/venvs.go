// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/venv"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const (
	// keptVenvs is how many virtual environments are kept whatever their age, the ones used last.
	keptVenvs = 5
	// unusedVenvs is how long a virtual environment is kept without a use, unless it is one of the five that were used last.
	unusedVenvs = 14 * 24 * time.Hour
)

// venvFor finds the virtual environment of a tree's jobs for the Python of this node's image, "" for none. The caller holds the lock.
func (js *jobs) venvFor(base string) (dir string, err error) {
	if base == "" {
		return "", nil
	}
	python, err := js.identifyPython()
	if err == nil {
		dir, err = venv.Find(base, python)
	}
	if err != nil {
		err = fail.Becausef(fail.SyncFailed, "starting the job: the requirements are not installed for the Python of node %d: %w", js.config.Node,
			err)
		return "", fail.Advise(err, "sync the repository again, with its requirements")
	}
	return dir, nil
}

// identifyPython asks the image's Python what it is, once. The caller holds the lock.
func (js *jobs) identifyPython() ([]byte, error) {
	if js.python != nil {
		return js.python, nil
	}
	own := js.config.ownPrograms()
	program, err := agent.FindProgram("python3", own.path)
	if err != nil {
		return nil, err
	}
	const patience = 30 * time.Second // for python to report its version from a slow volume
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var output, problem boundedOutput
	command := exec.Command(program, "-I", "-c", venv.Identify)
	command.Env, command.Stdout, command.Stderr = js.config.Environ, &output, &problem
	keeper := &processes{record: filepath.Join(js.config.Paths.stateDir(), "python"), node: js.config.Node}
	exit, err := keeper.runKept(ctx, own.agent, command)
	if err == nil && exit != (agent.Exit{}) {
		err = errors.New(string(bytes.TrimSpace(problem)))
	}
	if err != nil {
		return nil, fmt.Errorf("asking %s what it is: %w", program, err)
	}
	js.python = output
	return output, nil
}

// busy reports whether a job may run that uses a virtual environment of the claim. The agent that would end it at its deadline may be gone,
// with its environment.
func (js *jobs) busy() bool {
	return len(js.running()) > 0 || js.mayRun(func(spec agent.JobSpec) bool {
		return spec.Deadline.IsZero() || time.Now().Before(spec.Deadline)
	})
}

// collectVenvs removes virtual environments that have not been used for long.
func (js *jobs) collectVenvs() error {
	removed, err := venv.Collect(filepath.Join(js.config.Paths.stateDir(), "venvs"), keptVenvs, unusedVenvs, js.busy)
	if len(removed) > 0 {
		js.log.Info("Removed virtual environments that have not been used for long.", "names", removed)
	}
	return err
}
