// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pylib"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/services"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// additions returns the variables that the agent adds to the container's, for jobs
// of every launcher and for shells. They replace no variable of the container.
func (c Config) additions() map[string]string {
	state := c.Paths.stateDir()
	own := c.ownCache()
	added := map[string]string{
		"NODE_RANK":          strconv.Itoa(c.Node),
		"GPUS_PER_NODE":      strconv.Itoa(c.GPUs),
		"DEEPSPEED_HOSTFILE": c.Paths.hostfile(),
		"HOME":               filepath.Join(state, homeName),
		"USER":               "mlenv",
		"LOGNAME":            "mlenv",
		"XDG_CACHE_HOME":     own,
		extensionsVariable:   filepath.Join(own, "torch-extensions"),
		"MPLCONFIGDIR":       filepath.Join(own, "matplotlib"),
		"GLOO_SOCKET_IFNAME": interfaceOf(c.PodIP),
		"MLENV_AGENT":        c.Program,
		"MLENV_WORKSPACE":    c.Paths.Workspace,
		"MLENV_DATASETS":     c.Paths.Datasets,
	}
	maps.Copy(added, c.cacheVariables())
	if c.Local {
		maps.DeleteFunc(added, func(name, _ string) bool { return isFolder(name) || name == "USER" || name == "LOGNAME" })
	}
	maps.Copy(added, agent.World{Master: c.Host(0), Nodes: c.Nodes, RanksPerNode: c.GPUs}.Variables())
	return added
}

// cacheVariables returns the variables that place the caches which programs protect by locks and renames. Those of Hugging Face and
// datasets lie below HF_HOME, which all nodes share on a shared claim; moving only their locks would let two nodes write one cache.
// Logins stay on the claim: a user has written them.
func (c Config) cacheVariables() map[string]string {
	shared := filepath.Join(c.Paths.stateDir(), "cache", "huggingface")
	if c.NodeCaches {
		node := c.Paths.caches()
		return map[string]string{
			"HF_HOME": filepath.Join(node, "huggingface"), "HF_TOKEN_PATH": filepath.Join(shared, "token"),
			"HF_STORED_TOKENS_PATH":   filepath.Join(shared, "stored_tokens"),
			"TORCHINDUCTOR_CACHE_DIR": filepath.Join(node, "inductor"), "TRITON_CACHE_DIR": filepath.Join(node, "triton"),
		}
	}
	own := c.ownCache()
	return map[string]string{"HF_HOME": shared, "TORCHINDUCTOR_CACHE_DIR": filepath.Join(own, "inductor"),
		"TRITON_CACHE_DIR": filepath.Join(own, "triton")}
}

// ownCache returns the node's folder on the workspace for caches that are not safe to share between nodes, such as compilers'.
func (c Config) ownCache() string {
	return filepath.Join(c.Paths.private(), "cache", fmt.Sprintf("node-%d", c.Node))
}

// interfaceOf returns the interface with the address, "" for none. gloo takes one name, NCCL a list of exclusions. The loopback interface
// has more addresses than it lists.
func interfaceOf(address string) string {
	interfaces, _ := net.Interfaces()
	loopback := net.ParseIP(address).IsLoopback()
	for _, i := range interfaces {
		if loopback && i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			if prefix, ok := a.(*net.IPNet); ok && prefix.IP.String() == address {
				return i.Name
			}
		}
	}
	return ""
}

// network returns the configured network, nil for none. It is a file because shells are processes of their own.
func (c Config) network() *agent.Network {
	var network agent.Network
	if claimfile.ReadJSON(c.Paths.network(), maxRequest, &network) != nil {
		return nil
	}
	return &network
}

// environment merges the variables of the container, of the agent, of the network and those given; later ones win. The agent's
// HOME wins too, because the HOME of a container with a random user ID is unusable.
func (c Config) environment(given ...map[string]string) map[string]string {
	result := map[string]string{}
	for _, entry := range c.Environ {
		if key, value, ok := strings.Cut(entry, "="); ok {
			result[key] = value
		}
	}
	for key, value := range c.additions() {
		if _, ok := result[key]; value != "" && (!ok || key == "HOME") {
			result[key] = value
		}
	}
	if network := c.network(); network != nil {
		maps.Copy(result, network.Set)
		for _, name := range network.Unset {
			delete(result, name)
		}
		if own := network.Set[agent.CUDADevices]; own != "" {
			result[agent.OwnGPUs] = own
			// An empty entry would be the current folder.
			result["PATH"] = strings.TrimSuffix(c.Paths.frontDir()+":"+result["PATH"], ":")
		}
	}
	// Without a job there are no ranks: accelerate before 1.13 takes the variable for a launcher's, and waits for the others.
	delete(result, "WORLD_SIZE")
	for _, m := range given {
		maps.Copy(result, m)
	}
	pylib.AddTo(result, c.Paths.python())
	return result
}

// publicEnvironment returns the part of the environment that facts report: nothing that could be
// a secret.
func (c Config) publicEnvironment() map[string]string {
	environment, additions := c.environment(), c.additions()
	maps.DeleteFunc(environment, func(key, _ string) bool {
		_, ours := additions[key]
		return !ours && key != agent.CUDADevices && !strings.HasPrefix(key, "NCCL_") && !strings.HasPrefix(key, "GLOO_")
	})
	return environment
}

// linkSMI makes the agent the nvidia-smi of jobs, shells and services.
func (c Config) linkSMI() error {
	if err := os.MkdirAll(c.Paths.frontDir(), 0o755); err != nil {
		return err
	}
	link := filepath.Join(c.Paths.frontDir(), agent.SMI)
	if err := os.Symlink(c.Program, link); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// ShellEnvironment returns what `mlenv-agent exec` gives a shell.
func (c Config) ShellEnvironment() []string { return agent.Environ(c.environment()) }

// ShellFolder returns where a shell starts: the repository, unless none was synced, or else the workspace.
func (c Config) ShellFolder() string {
	if info, err := os.Stat(c.Paths.current()); err == nil && info.IsDir() {
		return c.Paths.current()
	}
	return c.Paths.Workspace
}

// serviceOptions give services the environment of shells.
func (c Config) serviceOptions() services.Options {
	return services.Options{
		Dir: c.Paths.services(), Workspace: c.Paths.Workspace, Logs: filepath.Join(c.Paths.private(), "services"),
		Run:    filepath.Dir(c.Paths.socket()),
		Public: c.Public, Loopback: c.Loopback, Environ: func() map[string]string { return c.environment() },
	}
}

// isFolder reports whether the variable names a folder that the agent creates.
func isFolder(variable string) bool {
	return strings.HasSuffix(variable, "_DIR") || strings.HasSuffix(variable, "HOME") || variable == "MPLCONFIGDIR"
}

// prepare creates the folders that the environment names, the modules of package pylib, and the hostfile.
func (c Config) prepare() error {
	for key, value := range c.additions() {
		if isFolder(key) {
			if err := os.MkdirAll(value, 0o775); err != nil {
				return fmt.Errorf("creating the folder of %s: %w: the workspace claim must be writable by group 0", key, err)
			}
		}
	}
	if err := pylib.Write(c.Paths.python()); err != nil {
		return err
	}
	var hosts strings.Builder
	for node := range c.Nodes {
		// With 0 slots DeepSpeed's launcher starts no rank, and ends with 0.
		fmt.Fprintf(&hosts, "%s slots=%d\n", c.Host(node), max(c.GPUs, 1))
	}
	if err := record.WriteFile(c.Paths.hostfile(), []byte(hosts.String())); err != nil || c.Local {
		return err
	}
	launcher := filepath.Join(filepath.Dir(c.Paths.hostfile()), "launch_deepspeed.sh")
	if err := record.WriteFile(launcher, fmt.Appendf(nil, launchScript, c.Paths.Workspace, c.Program)); err != nil {
		return err
	}
	file, err := claimfile.Open(launcher)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Chmod(0o775)
}

// launchScript trains as the launch_deepspeed.sh of earlier environments did, which took these arguments.
const launchScript = `#!/bin/sh
# launch_deepspeed.sh [SCRIPT [CONFIG [HOSTFILE [ARGUMENT...]]]], with paths in the workspace or in the tree of the last mlenv sync.
# It trains on all nodes of the environment, whatever the hostfile contains.
cd '%s' || exit
script=${1:-train_multi_node.py} config=${2:-ds_config.json}
if [ -f "$config" ]; then config=$PWD/$config; fi
shift $(($# < 3 ? $# : 3))
exec '%s' train --launcher=deepspeed "$script" -- --deepspeed --deepspeed_config="$config" "$@"
`
