// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestShebang(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.sh")
	for _, test := range []struct {
		text string
		mode os.FileMode
		want []string
	}{
		{"#!/bin/sh -e\nfalse\n", 0o755, []string{"/bin/sh", "-e", "train.sh"}},
		{"#! /usr/bin/env -S bash -u\n", 0o755, nil}, // a space is not the usual form, and bash runs it
		{"#!/usr/bin/env -S sh -u\n", 0o755, []string{"/usr/bin/env", "-S sh -u", "train.sh"}},
		{"#!/bin/sh\n", 0o755, []string{"/bin/sh", "train.sh"}},
		{"#!/bin/sh -e\n", 0o644, nil},
		{"#!/bin/sh -e\r\n", 0o755, nil},
		{"#!/no/such/shell\n", 0o755, nil},
		{"echo 1\n", 0o755, nil},
		{"", 0o755, nil},
	} {
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, test.mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, shebang(path, info, "train.sh")); diff != "" {
			t.Errorf("%q, mode %o (-want +got):\n%s", test.text, test.mode, diff)
		}
	}
}

// DeepSpeed's launcher takes the user's own list, and torchrun's ranks keep it.
func TestDevicesOfTheUser(t *testing.T) {
	c := Config{GPUs: 4, Paths: Paths{Home: t.TempDir()}}
	for given, want := range map[string][]string{
		"": {"0", "1"}, "2,3": {"2", "3"}, "GPU-a,GPU-b,GPU-c": {"GPU-a", "GPU-b"}, "-1": {"-1", "-1"}, "3": {"3"},
	} {
		spec := agent.JobSpec{RanksPerNode: 2, Env: map[string]string{agent.CUDADevices: given}}
		if got := c.devicesOf(spec); !slices.Equal(got, want) {
			t.Errorf("%s=%s: %v, want %v", agent.CUDADevices, given, got, want)
		}
	}
	spec := agent.JobSpec{Launcher: agent.DeepSpeed, RanksPerNode: 2, Nodes: 1, Env: map[string]string{agent.CUDADevices: "3"}}
	if _, err := c.planLaunch("job", spec, jobFolder{dir: t.TempDir()}, t.TempDir()); err == nil {
		t.Error("one GPU for two ranks: want an error")
	}
}

// A shell has no ranks, so programs in it must not wait for any.
func TestShellsHaveNoWorldSize(t *testing.T) {
	c := Config{Nodes: 2, GPUs: 4, Environ: []string{"WORLD_SIZE=8"}, Paths: Paths{Home: t.TempDir()}}
	if value, ok := agent.Variable(c.ShellEnvironment(), "WORLD_SIZE"); ok {
		t.Errorf("WORLD_SIZE is %s", value)
	}
	if got := c.environment(map[string]string{"WORLD_SIZE": "8"})["WORLD_SIZE"]; got != "8" {
		t.Errorf("in a job WORLD_SIZE is %q", got)
	}
}

// Launcher command starts programs without a shell, whose arguments name the node's place.
func TestVariablesInArguments(t *testing.T) {
	c := Config{Node: 1, Nodes: 2, Addresses: []string{"10.0.0.1", "10.0.0.2"}, Program: os.Args[0],
		Environ: []string{"PATH=" + os.Getenv("PATH")}}
	given := []string{"--nnodes=$NNODES", "--node-rank", "${NODE_RANK}", "$MASTER_ADDR:$MASTER_PORT", "$HOME $NODE_RANKS $$"}
	for launcher, want := range map[agent.Launcher][]string{
		agent.Command:  {"--nnodes=2", "--node-rank", "1", "10.0.0.1:29500", "$HOME $NODE_RANKS $$"},
		agent.Torchrun: given,
	} {
		l, err := c.planLaunch("id", agent.JobSpec{Launcher: launcher, Script: "/bin/true", Args: given, Nodes: 2, RanksPerNode: 1},
			jobFolder{dir: t.TempDir()}, "/record")
		if err != nil {
			t.Fatal(err)
		}
		if got := l.args[len(l.args)-len(want):]; !slices.Equal(got, want) {
			t.Errorf("launcher %s: got %q, want %q", launcher, got, want)
		}
	}
}
