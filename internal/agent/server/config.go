// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Config describes the node to the agent.
type Config struct {
	// Version of the program, for messages.
	Version string
	// Name of the environment; Suffix is what follows a pod's name in its DNS name.
	Name, Suffix string
	// Node is the ordinal, Nodes how many the environment has.
	Node, Nodes int
	// GPUs is how many GPUs the node has.
	GPUs int
	// Pod and KubernetesNode are names, PodIP is the pod's address.
	Pod, KubernetesNode, PodIP string
	// Public is the address on which services listen for users, Loopback the one for
	// the node itself.
	Public, Loopback string
	// Environ is the environment of the container.
	Environ []string
	// Program is the agent's own, for the rank shim.
	Program string
	Paths   Paths
	// Addresses of the nodes, if they have no DNS names.
	Addresses []string
	// Dial connects to another node's agent, nil for its DNS name.
	Dial agent.Dialer
	// StopGrace is how long ranks have to save when they are stopped; 0 means agent.DefaultStopGrace. It is also the time between
	// SIGTERM and SIGKILL of the container.
	StopGrace time.Duration
	// Local is true for a node that is a person's machine: jobs keep the person's home and caches.
	Local bool
	// NodeCaches is true for caches on the node's own disk, see agent.NodeCachesVariable.
	NodeCaches bool
	// Now is the clock of the node's use, nil for time.Now.
	Now func() time.Time
}

// Paths are the folders of a node; tests use others than DefaultPaths.
type Paths struct {
	Workspace, Datasets, Home, Sys string
	// Own is the folder on the workspace claim for what environments that share it must not share, "" if the claim is the
	// environment's own.
	Own string
}

// DefaultPaths returns the paths in a pod, as package agent names them.
func DefaultPaths() Paths {
	return Paths{Workspace: agent.Workspace, Datasets: agent.Datasets, Home: agent.Home, Sys: "/sys/fs/cgroup"}
}

// homeName is the name of the ranks' home in the state folder.
const homeName = "home"

func (p Paths) stateDir() string { return filepath.Join(p.Workspace, ".mlenv") }
func (p Paths) treesDir() string { return filepath.Join(p.stateDir(), "trees") }
func (p Paths) runsDir() string  { return filepath.Join(p.stateDir(), "runs") }
func (p Paths) current() string  { return filepath.Join(cmp.Or(p.Own, p.Workspace), "repo") }
func (p Paths) hostfile() string {
	return filepath.Join(cmp.Or(p.Own, p.Workspace), ".deepspeed", "hostfile")
}
func (p Paths) socket() string   { return filepath.Join(p.Home, "run", "agent.sock") }
func (p Paths) network() string  { return filepath.Join(p.Home, "run", "network.json") }
func (p Paths) tlsDir() string   { return filepath.Join(p.Home, "tls") }
func (p Paths) services() string { return filepath.Join(p.Home, "services") }

// frontDir returns the first folder in PATH in a pod that sees more GPUs than it was given.
func (p Paths) frontDir() string { return filepath.Join(p.Home, "run", "front") }

// python returns the folder of package pylib. Its name makes its modules installed ones, for whoever reads a stack.
func (p Paths) python() string { return filepath.Join(p.Home, "run", "site-packages") }

// caches returns the folder of caches on the node's own disk, in a volume that lasts as long as the pod.
func (p Paths) caches() string { return filepath.Join(p.Home, "run", "cache") }

// private returns the folder of the state that each environment has for itself.
func (p Paths) private() string { return cmp.Or(p.Own, p.stateDir()) }

// ReadConfig reads the variables that the environment's StatefulSet sets.
func ReadConfig(version string, environ []string) (Config, error) {
	c := Config{Version: version, Environ: environ, Paths: DefaultPaths()}
	var missing []string
	text := func(name string) string {
		value, set := agent.Variable(environ, name)
		if !set {
			missing = append(missing, name)
		}
		return value
	}
	number := func(name string) int {
		value := text(name)
		n, err := strconv.Atoi(value)
		if _, set := agent.Variable(environ, name); set && (err != nil || n < 0) {
			missing = append(missing, fmt.Sprintf("%s (is %q, want a number from 0)", name, value))
		}
		return n
	}
	c.Name, c.Suffix = text("MLENV_NAME"), text("MLENV_HEADLESS")
	if shares, _ := agent.Variable(environ, agent.SharesWorkspaceVariable); agent.SharesClaims(c.Name) || shares == "true" {
		c.Paths.Own = filepath.Join(c.Paths.stateDir(), "environments", c.Name)
	}
	onNode, _ := agent.Variable(environ, agent.NodeCachesVariable)
	c.NodeCaches = onNode == "true"
	c.Pod, c.PodIP = text("POD_NAME"), text("POD_IP")
	if rank, set := agent.Variable(environ, "NODE_RANK"); set && rank == "" {
		// Clusters before Kubernetes 1.28 do not set the label that it comes from.
		ordinal, _ := strings.CutPrefix(c.Pod, c.Name+"-")
		environ = slices.Concat([]string{"NODE_RANK=" + ordinal}, slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
			return e == "NODE_RANK="
		}))
		c.Environ = environ
	}
	c.Node, c.Nodes, c.GPUs = number("NODE_RANK"), number("NUM_NODES"), number("GPUS_PER_NODE")
	if len(missing) == 0 && c.Node >= c.Nodes {
		missing = append(missing, fmt.Sprintf("NODE_RANK (is %d of %d nodes)", c.Node, c.Nodes))
	}
	if value, set := agent.Variable(environ, agent.StopGraceVariable); set {
		grace, err := time.ParseDuration(value)
		if err != nil || grace <= 0 {
			missing = append(missing, fmt.Sprintf("%s (is %q, want a duration)", agent.StopGraceVariable, value))
		}
		c.StopGrace = grace
	}
	c.KubernetesNode, _ = agent.Variable(environ, "NODE_NAME")
	c.Public, c.Loopback = "0.0.0.0", "127.0.0.1"
	if strings.Contains(c.PodIP, ":") {
		c.Public = "::" // IPv4 too, if the pod has an address
	}
	if len(missing) > 0 {
		return c, fmt.Errorf("reading the environment's variables: %s: want a pod that provision created", strings.Join(missing, ", "))
	}
	var err error
	c.Program, err = os.Executable()
	return c, err
}

func (c Config) stopGrace() time.Duration { return cmp.Or(c.StopGrace, agent.DefaultStopGrace) }

// containerGrace returns how long ranks have to save when the container ends: its grace, less the time to record how they ended.
func (c Config) containerGrace() time.Duration {
	const toRecord = 5 * time.Second // for the record of how the ranks ended
	grace := c.stopGrace()
	return grace - min(toRecord, grace/3)
}

// Repository returns the link to the tree that was synced last.
func (c Config) Repository() string { return c.Paths.current() }

// Host returns the DNS name of a node, or its address.
func (c Config) Host(node int) string {
	if node < len(c.Addresses) {
		return c.Addresses[node]
	}
	return fmt.Sprintf("%s-%d.%s", c.Name, node, c.Suffix)
}

// PeerClient returns the client of another node's agent.
func (c Config) PeerClient(node int) (*agent.Client, error) {
	credentials, err := agent.ReadCredentials(c.Paths.tlsDir())
	if err != nil {
		return nil, err
	}
	dial := c.Dial
	if dial == nil {
		dial = func(ctx context.Context, node int) (net.Conn, error) {
			dialer := net.Dialer{Timeout: 10 * time.Second}
			return dialer.DialContext(ctx, "tcp", net.JoinHostPort(c.Host(node), strconv.Itoa(agent.Port)))
		}
	}
	return agent.NewClient(node, c.Host(node), credentials, dial), nil
}
