// SPDX-License-Identifier: Apache-2.0

//go:build linux

package local

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// launchers' variables, which a shell may have from another training. Those of the nodes take their place.
var launchers = append([]string{"GPUS_PER_NODE", agent.CUDADevices, facts.VisibleDevices}, agent.PlaceVariables...)

// ranksEnviron returns the variables of this process that the nodes have too, with the Python in front of PATH.
func ranksEnviron(environ []string, python string) ([]string, error) {
	path, _ := agent.Variable(environ, "PATH")
	if python != "" {
		found, err := exec.LookPath(python)
		if err != nil || filepath.Base(found) != "python3" {
			return nil, fail.Becausef(fail.InvalidInput, "--python %q: want the path of a python3, such as that of a virtual environment", python)
		}
		if found, err = filepath.Abs(found); err != nil {
			return nil, err
		}
		path = filepath.Dir(found) + string(filepath.ListSeparator) + path
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == "PATH" || strings.HasPrefix(name, "MLENV_") || strings.HasPrefix(name, "TORCHELASTIC_") || slices.Contains(launchers, name)
	})
	return append(environ, "PATH="+path), nil
}

// divided returns the UUIDs of the GPUs of each node: those that this process may use, in equal parts. A rank without one uses the
// processors.
func divided(ctx context.Context, o Options) ([][]string, error) {
	chosen, given := agent.Variable(o.Environ, agent.CUDADevices)
	if given && (chosen == "" || chosen == "-1") { // as CUDA reads it
		return make([][]string, o.Nodes), nil
	}
	all, _, err := facts.GPUs(ctx, nil, 0)
	if err != nil {
		return nil, fail.Advise(fail.Becausef(fail.GPUMissing, "looking for GPUs of this machine: %w", err),
			"mend the driver, or use processors only: %s= in front of the command", agent.CUDADevices)
	}
	var usable []string
	for _, gpu := range all {
		if !given || slices.ContainsFunc(strings.Split(chosen, ","), func(id string) bool {
			return id == strconv.Itoa(gpu.Index) || id != "" && strings.HasPrefix(gpu.UUID, id)
		}) {
			usable = append(usable, gpu.UUID)
		}
	}
	gpus := make([][]string, o.Nodes)
	if len(usable) == 0 {
		return gpus, nil
	}
	if len(usable)%o.Nodes != 0 {
		err := fail.Becausef(fail.InvalidInput, "dividing %s between %s: want the same number for each", humanize.Count(len(usable), "GPU"),
			humanize.Count(o.Nodes, "node"))
		return nil, fail.Advise(err, "--nodes=1, or %s= in front of the command for processors only; with indexes it chooses some GPUs",
			agent.CUDADevices)
	}
	each := len(usable) / o.Nodes
	for node := range gpus {
		gpus[node] = usable[node*each : (node+1)*each]
	}
	return gpus, nil
}
