// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// TestVariablesAreDocumented: each variable that the agent gives a job has its row in docs/reference/node.md.
func TestVariablesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/node.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, launcher := range []agent.Launcher{agent.DeepSpeed, agent.Torchrun} {
		// The job cannot start, because PATH has no program, but plan sets its variables.
		spec := agent.JobSpec{Launcher: launcher, Nodes: 1, RanksPerNode: 2}
		l, err := Config{Nodes: 1}.planLaunch("id", spec, jobFolder{venv: "/venv", earlier: []string{"/work"}}, "/record")
		if err == nil || len(l.env) < 20 {
			t.Fatalf("got %v, %v; want the variables of a job and no python3", l.env, err)
		}
		for _, name := range slices.Sorted(maps.Keys(l.env)) {
			if !strings.Contains(string(page), name) {
				t.Errorf("docs/reference/node.md has no row for %s", name)
			}
		}
	}
}

// The program that creates a virtual environment must not run inside the tree's previous one.
func TestVenvOfJob(t *testing.T) {
	for script, want := range map[string]string{"/bin/true": "/venv", os.Args[0]: ""} {
		spec := agent.JobSpec{Launcher: agent.Command, Script: script, Nodes: 1, RanksPerNode: 1}
		l, err := Config{Nodes: 1, Program: os.Args[0]}.planLaunch("id", spec, jobFolder{venv: "/venv"}, "/record")
		if err != nil || l.env["VIRTUAL_ENV"] != want || strings.HasPrefix(l.env["PATH"], "/venv/bin:") != (want != "") {
			t.Errorf("%s: in %q with PATH %q, %v; want %q", script, l.env["VIRTUAL_ENV"], l.env["PATH"], err, want)
		}
	}
}
