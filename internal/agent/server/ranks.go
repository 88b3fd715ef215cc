// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
)

// placeRanks adds to the environment what DeepSpeed's launcher (0.17) or torchrun (torch 2.6 to 2.9) gives every rank of the node, and
// returns the variables of each rank. A test in test/culprits compares both with the originals. For other launchers it does nothing.
// Each rank also gets the processors near its GPU.
//
// Two of torchrun's variables are different. Its process on node 0 serves the store at which ranks meet, here rank 0 does, so
// TORCHELASTIC_USE_AGENT_STORE is False. Nothing reads a TORCHELASTIC_ERROR_FILE, so there is none.
func (c Config) placeRanks(spec agent.JobSpec, env map[string]string) (ranks []string) {
	nodes, perNode, position := strconv.Itoa(spec.Nodes), strconv.Itoa(spec.RanksPerNode), strconv.Itoa(spec.Position(c.Node))
	each := "RANK=%d LOCAL_RANK=%d"
	switch spec.Launcher {
	case agent.DeepSpeed:
		maps.Copy(env, map[string]string{
			"LOCAL_SIZE": perNode, "CROSS_RANK": position, "CROSS_SIZE": nodes, agent.CUDADevices: strings.Join(c.devicesOf(spec), ","),
		})
	case agent.Torchrun:
		each += " ROLE_RANK=%[1]d"
		maps.Copy(env, map[string]string{
			"LOCAL_WORLD_SIZE": perNode, "GROUP_RANK": position, "GROUP_WORLD_SIZE": nodes, "ROLE_NAME": "default",
			"ROLE_WORLD_SIZE":     env["WORLD_SIZE"],
			"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
			"TORCHELASTIC_USE_AGENT_STORE": "False",
		})
		setDefault(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
		if spec.RanksPerNode > 1 {
			setDefault(env, "OMP_NUM_THREADS", "1")
		}
	default:
		return nil
	}
	near := c.nearCPUs(spec, env)
	for local, number := range spec.Ranks(c.Node) {
		variables := fmt.Sprintf(each, number, local)
		if local < len(near) && near[local] != "" {
			variables += " " + rank.CPUsVariable + "=" + near[local]
		}
		ranks = append(ranks, variables)
	}
	return ranks
}

// bindVariable is for users who bind ranks to processors themselves: off leaves it to them.
const bindVariable = "MLENV_CPU_BINDING"

// nearCPUs returns the processors near the GPU of each rank, "" for a rank that is not bound: if the job binds its ranks or chooses their
// GPUs itself, and if ranks would share fewer processors than they may use without binding, as with all GPUs on one of two NUMA nodes.
func (c Config) nearCPUs(spec agent.JobSpec, env map[string]string) []string {
	network := c.network()
	if _, chosen := spec.Env[agent.CUDADevices]; chosen || network == nil || env[bindVariable] == "off" {
		return nil
	}
	near := slices.Clone(network.CPUs[:min(len(network.CPUs), spec.RanksPerNode)])
	sharing := map[string]int{}
	for _, list := range near {
		sharing[list]++
	}
	var own unix.CPUSet
	if unix.SchedGetaffinity(0, &own) != nil {
		return nil
	}
	for i, list := range near {
		cpus, err := rank.ParseCPUs(list)
		for word := range cpus {
			cpus[word] &= own[word]
		}
		// Go's own count heeds the container's limit.
		if err != nil || cpus.Count()/sharing[list] < runtime.GOMAXPROCS(0)/spec.RanksPerNode {
			near[i] = ""
		}
	}
	return near
}

func setDefault(env map[string]string, name, value string) {
	if _, given := env[name]; !given {
		env[name] = value
	}
}

// devicesOf returns what the ranks of a node of the job see: the first of the GPUs that the user names, which may be too few, or else
// devices. -1 names none.
func (c Config) devicesOf(spec agent.JobSpec) []string {
	given := strings.Split(spec.Env[agent.CUDADevices], ",")
	switch given[0] {
	case "":
		return c.devices(spec.RanksPerNode)
	case "-1":
		return slices.Repeat(given[:1], spec.RanksPerNode)
	}
	return given[:min(len(given), spec.RanksPerNode)]
}

// devices returns the value of CUDA_VISIBLE_DEVICES by DeepSpeed's launcher: an entry for each rank of the node. If the pod sees more
// GPUs than its own, entries are UUIDs, and -1, which is no GPU, for ranks without one.
func (c Config) devices(ranks int) (devices []string) {
	var uuids string
	var more bool
	if network := c.network(); network != nil {
		uuids, more = network.Set[agent.CUDADevices]
	}
	own := strings.FieldsFunc(uuids, func(r rune) bool { return r == ',' })
	for local := range ranks {
		switch {
		case local < len(own):
			devices = append(devices, own[local])
		case more:
			devices = append(devices, "-1")
		default:
			devices = append(devices, strconv.Itoa(local))
		}
	}
	return devices
}
