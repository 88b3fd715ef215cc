// SPDX-License-Identifier: Apache-2.0

// Package topology has the files, names and addresses of the local cluster.
package topology

import (
	"fmt"
	"os"
	"path/filepath"
)

// Constants of the whole cluster. A machine can have one cluster.
const (
	// StateDir holds everything that a running cluster needs and that down removes.
	StateDir = "/var/lib/ml-dev-env-localcluster"

	// CgroupRoot is the cgroup of every process of the cluster: the components are in CgroupRoot/system, pods in
	// CgroupRoot/NODE.
	CgroupRoot = "ml-dev-env-localcluster"

	Bridge       = "mlenv0"
	BridgeSubnet = "10.223.0.0/24"
	HostIP       = "10.223.0.1"
	ControlIP    = "10.223.0.2"
	PodCIDR      = "10.128.0.0/16"
	ServiceCIDR  = "172.30.0.0/16"
	APIServiceIP = "172.30.0.1"
	DNSServiceIP = "172.30.0.10"

	// Domain is the domain of the cluster's own servers inside pods.
	Domain = "localcluster.local"

	APIServerURL = "https://" + ControlIP + ":6443"
	// RegistryHost is an address, not a name, so that one image reference is
	// valid in a pod, on a node and on the host.
	RegistryHost = ControlIP + ":5000"
	GitHost      = "git." + Domain
	// AdmissionAddress is the address of the stand-in for OpenShift's pod rules.
	AdmissionAddress = ControlIP + ":8443"
	// BuildAPIAddress is the address of the stand-in for OpenShift's build API.
	BuildAPIAddress = ControlIP + ":8444"
	EtcdAddress     = "127.0.0.1:2379"

	// Direct is a value for NO_PROXY: the cluster's addresses and names, which no proxy of the machine knows.
	Direct = BridgeSubnet + "," + PodCIDR + "," + ServiceCIDR + ",localhost,127.0.0.1,.svc,.cluster.local,." + Domain

	// MaxNodes is the maximum number of nodes of a cluster.
	MaxNodes = 8
)

// Netns is a network namespace of the cluster: the control plane's, a node's or the fabric's.
type Netns struct {
	// Name is the component suffix.
	Name string
	// Node is the name of the Kubernetes node: Name, or a name from the profile. It is "" if the namespace has no node.
	Node string
	IP   string
	// PodCIDR is empty if the namespace has no pods.
	PodCIDR string
}

// Control returns the namespace of the control plane and of the other servers.
func Control() Netns { return Netns{Name: "control", IP: ControlIP} }

// Fabric returns the namespace of the rails' switches. No process runs in it.
func Fabric() Netns { return Netns{Name: "fabric"} }

// Node returns the namespace of node i, counted from 1.
func Node(i int) Netns {
	name := fmt.Sprintf("node-%d", i)
	return Netns{
		Name:    name,
		Node:    name,
		IP:      fmt.Sprintf("10.223.0.%d", 10+i),
		PodCIDR: fmt.Sprintf("10.128.%d.0/24", i),
	}
}

// Nodes returns the namespaces of n nodes.
func Nodes(n int) []Netns {
	nodes := make([]Netns, n)
	for i := range nodes {
		nodes[i] = Node(i + 1)
	}
	return nodes
}

// SystemName returns the namespace's name in the kernel.
func (n Netns) SystemName() string { return "mlenv-" + n.Name }

// Path returns the path at which the namespace is mounted.
func (n Netns) Path() string { return "/run/netns/" + n.SystemName() }

// Veth returns the name of the host's end of the cable to the bridge.
func (n Netns) Veth() string { return "mlv-" + n.Name }

// Port returns the name of the fabric's end of the cable to a NIC of the node.
func (n Netns) Port(nic string) string { return n.Name + "-" + nic }

// Dir returns the folder for the files of this namespace alone.
func (n Netns) Dir() string { return State("nodes", n.Name) }

// RDMADir returns the folder of the node's stand-in RDMA devices.
func RDMADir(node string) string { return State("nodes", node, "rdma") }

// State returns a path in the state folder.
func State(parts ...string) string {
	return filepath.Join(append([]string{StateDir}, parts...)...)
}

// CacheDir returns the folder that down keeps. It contains compiled binaries, root file systems and images, each under
// a key of its inputs.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: %w; set HOME or XDG_CACHE_HOME", err)
	}
	return filepath.Join(base, "ml-dev-env", "localcluster"), nil
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func Kubeconfig() string { return State("kubeconfig") }
