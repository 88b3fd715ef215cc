package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Config is what the agent must know of its node.
type Config struct {
	// Version of the program, for people.
	Version string
	// Name of the environment; Suffix is what follows a pod's name in its DNS name.
	Name, Suffix string
	// Node is the ordinal, Nodes how many the environment has.
	Node, Nodes int
	// GPUs are how many the node was given.
	GPUs int
	// Pod and KubernetesNode are names, PodIP is the pod's address.
	Pod, KubernetesNode, PodIP string
	// Public is the address that services listen on for people, Loopback the one for
	// the node itself.
	Public, Loopback string
	// Environ is what the container was given.
	Environ []string
	// Program is the agent's own, for the rank shim.
	Program string
	Paths   Paths
	// Guest is true in a container that is somebody else's: its HOME is kept.
	Guest bool
	// Addresses are the nodes' where they have no DNS names.
	Addresses []string
	// Idle is after how long without a request Serve ends by itself; 0 for never.
	Idle time.Duration
}

// Paths are the folders of a node; tests have others than DefaultPaths.
type Paths struct {
	Workspace, Datasets, Home, Sys string
}

// DefaultPaths are those of the agent package.
func DefaultPaths() Paths {
	return Paths{Workspace: agent.Workspace, Datasets: agent.Datasets, Home: agent.Home, Sys: "/sys/fs/cgroup"}
}

func (p Paths) state() string    { return filepath.Join(p.Workspace, ".mlenv") }
func (p Paths) trees() string    { return filepath.Join(p.state(), "trees") }
func (p Paths) runs() string     { return filepath.Join(p.state(), "runs") }
func (p Paths) current() string  { return filepath.Join(p.Workspace, "repo") }
func (p Paths) hostfile() string { return filepath.Join(p.Workspace, ".deepspeed", "hostfile") }
func (p Paths) socket() string   { return filepath.Join(p.Home, "run", "agent.sock") }
func (p Paths) network() string  { return filepath.Join(p.Home, "run", "network.json") }
func (p Paths) tls() string      { return filepath.Join(p.Home, "tls") }
func (p Paths) services() string { return filepath.Join(p.Home, "services") }

// ReadConfig reads the variables that the environment's StatefulSet sets.
func ReadConfig(version string, environ []string) (Config, error) {
	c := Config{Version: version, Environ: environ, Paths: DefaultPaths()}
	var missing []string
	text := func(name string) string {
		value, ok := lookup(environ, name)
		if !ok {
			missing = append(missing, name)
		}
		return value
	}
	number := func(name string) int {
		value := text(name)
		n, err := strconv.Atoi(value)
		if err != nil && value != "" {
			missing = append(missing, fmt.Sprintf("%s (is %q, want a number)", name, value))
		}
		return n
	}
	c.Name, c.Suffix = text("MLENV_NAME"), text("MLENV_HEADLESS")
	c.Node, c.Nodes, c.GPUs = number("NODE_RANK"), number("NUM_NODES"), number("GPUS_PER_NODE")
	c.Pod, c.PodIP = text("POD_NAME"), text("POD_IP")
	c.KubernetesNode, _ = lookup(environ, "NODE_NAME")
	c.Public, c.Loopback = "0.0.0.0", "127.0.0.1"
	if strings.Contains(c.PodIP, ":") {
		c.Public = "::" // IPv4 too, where there is any
	}
	if len(missing) > 0 {
		return c, fmt.Errorf("reading the environment's variables: %s: the agent runs in pods that provision made", strings.Join(missing, ", "))
	}
	var err error
	c.Program, err = os.Executable()
	return c, err
}

// Host is the DNS name of a node, or its address where it has none.
func (c Config) Host(node int) string {
	if node < len(c.Addresses) {
		return c.Addresses[node]
	}
	return fmt.Sprintf("%s-%d.%s", c.Name, node, c.Suffix)
}

func lookup(environ []string, name string) (string, bool) {
	for _, entry := range environ {
		if key, value, ok := strings.Cut(entry, "="); ok && key == name {
			return value, true
		}
	}
	return "", false
}

// startTime is when the agent started, for facts.
type startTime struct {
	at       time.Time
	instance string
}
