// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// VisibleDevices is the variable in which NVIDIA's device plugin lists a container's GPUs.
const VisibleDevices = "NVIDIA_VISIBLE_DEVICES"

// mountedDevices is the folder in which the device plugin's strategy volume-mounts has an entry for each GPU of the container.
const mountedDevices = "/var/run/nvidia-container-devices"

// listed returns the container's GPUs, as UUIDs or indexes of the node, nil if nothing lists them: "all" is in NVIDIA's images, and
// runtimes that inject GPUs by CDI set "void".
func listed(environ []string, mounts string) (ids []string) {
	list, _ := agent.Variable(environ, VisibleDevices)
	ids = strings.Split(list, ",")
	if !slices.Contains([]string{"", "all", "none", "void"}, ids[0]) && !strings.HasPrefix(list, "/") {
		return ids
	}
	entries, _ := os.ReadDir(mounts)
	ids = nil
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids
}

// GivenGPUs returns how many GPUs the container was given if the device plugin gave it that many devices: with time slicing several of them
// may be one GPU.
func GivenGPUs(environ []string, devices int) int {
	ids := listed(environ, mountedDevices)
	distinct := map[string]bool{}
	for _, id := range ids {
		distinct[id] = true
	}
	return devices - (len(ids) - len(distinct))
}

// selectGiven selects the GPUs that the container was given from those that nvidia-smi shows, in nvidia-smi's order. A privileged container
// sees all GPUs of its node. given is how many it was given, 0 if that is unknown. An index counts among the node's GPUs, so it
// selects nothing in a container that sees only its own.
func selectGiven(shown []agent.GPU, ids []string, given int) ([]agent.GPU, error) {
	switch {
	case slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-") }):
		return slices.DeleteFunc(slices.Clone(shown), func(gpu agent.GPU) bool { return !slices.Contains(ids, gpu.UUID) }), nil
	case len(ids) > 0 && len(shown) > len(ids):
		return slices.DeleteFunc(slices.Clone(shown), func(gpu agent.GPU) bool { return !slices.Contains(ids, strconv.Itoa(gpu.Index)) }), nil
	case len(ids) == 0 && given > 0 && len(shown) > given:
		return nil, fmt.Errorf("nvidia-smi shows %d GPUs, the pod was given %d, and neither %s nor %s lists them: want a list, or all %d for "+
			"the pod (--gpus-per-node)",
			len(shown), given, VisibleDevices, mountedDevices, len(shown))
	}
	return shown, nil
}

// migLine is a line of `nvidia-smi -L`: a GPU, or one of the MIG devices of the GPU before it.
var migLine = regexp.MustCompile(`(?m)^(?:GPU (\d+):.*|\s+(MIG \S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\))\s*$`)

// withMIG replaces GPUs that are split by MIG by their MIG devices: these are what pods are given.
func withMIG(ctx context.Context, gpus []agent.GPU, split map[int]bool) ([]agent.GPU, error) {
	if len(split) == 0 {
		return gpus, nil
	}
	out, err := runSMI(ctx, "-L")
	if err != nil {
		return nil, fmt.Errorf("running nvidia-smi -L: %w", err)
	}
	parts := map[int][]agent.GPU{}
	parent := agent.GPU{}
	for _, match := range migLine.FindAllStringSubmatch(string(out), -1) {
		if match[1] != "" {
			if i := slices.IndexFunc(gpus, func(gpu agent.GPU) bool { return strconv.Itoa(gpu.Index) == match[1] }); i >= 0 {
				parent = gpus[i]
			}
			continue
		}
		part := parent
		part.UUID, part.Model = match[3], parent.Model+" "+match[2]
		parts[parent.Index] = append(parts[parent.Index], part)
	}
	var result []agent.GPU
	for _, gpu := range gpus {
		if split[gpu.Index] {
			result = append(result, parts[gpu.Index]...)
		} else {
			result = append(result, gpu)
		}
	}
	return result, nil
}

var nvLink = regexp.MustCompile(`\bNV\d+\b`)

// NVLink returns yes if NVLink joins GPUs that the container sees, and empty if nvidia-smi does not show their topology.
func NVLink(ctx context.Context) rdma.Answer {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := runSMI(ctx, "topo", "-m")
	switch {
	case err != nil:
		return ""
	case nvLink.Match(out):
		return rdma.Yes
	}
	return rdma.No
}
