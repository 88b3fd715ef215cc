// Package topology has the files, names and addresses of the local cluster.
package topology

import (
	"fmt"
	"os"
	"path/filepath"
)

// What belongs to the cluster as a whole. There is one cluster a machine.
const (
	// StateDir holds everything that a running cluster needs and that down removes.
	StateDir = "/var/lib/ml-dev-env-localcluster"

	// CgroupRoot is the one cgroup below which every process of the cluster
	// lives: the components in CgroupRoot/system, pods in CgroupRoot/NODE.
	CgroupRoot = "ml-dev-env-localcluster"

	Bridge       = "mlenv0"
	BridgeSubnet = "10.223.0.0/24"
	HostIP       = "10.223.0.1"
	ControlIP    = "10.223.0.2"
	PodCIDR      = "10.128.0.0/16"
	ServiceCIDR  = "172.30.0.0/16"
	APIServiceIP = "172.30.0.1"
	DNSServiceIP = "172.30.0.10"

	// Domain is where the cluster's own servers have names inside pods.
	Domain = "localcluster.local"

	APIServerURL = "https://" + ControlIP + ":6443"
	// RegistryHost is an address, not a name, so that one image reference is
	// valid in a pod, on a node and on the host.
	RegistryHost = ControlIP + ":5000"
	GitHost      = "git." + Domain
	// AdmissionAddress is where the stand-in for OpenShift's pod rules listens.
	AdmissionAddress = ControlIP + ":8443"
	// BuildAPIAddress is where the stand-in for OpenShift's build API listens.
	BuildAPIAddress = ControlIP + ":8444"
	EtcdAddress     = "127.0.0.1:2379"

	// MaxNodes is how many nodes a cluster can have.
	MaxNodes = 8
)

// Netns is a network namespace of the cluster: the control plane's, a node's or the fabric's.
type Netns struct {
	// Name is the component suffix.
	Name string
	// Node is the name of the Kubernetes node, "" where there is none: Name, or that of a profile.
	Node string
	IP   string
	// PodCIDR is empty where no pods are.
	PodCIDR string
}

// Control is the namespace of the control plane and of the other servers.
func Control() Netns { return Netns{Name: "control", IP: ControlIP} }

// Fabric is the namespace of the rails' switches, which nothing runs in.
func Fabric() Netns { return Netns{Name: "fabric"} }

// Node is the namespace of node i, counted from 1.
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

// SystemName is the namespace's name in the kernel.
func (n Netns) SystemName() string { return "mlenv-" + n.Name }

// Path is where the namespace is mounted.
func (n Netns) Path() string { return "/run/netns/" + n.SystemName() }

// Veth is the host's end of the cable to the bridge.
func (n Netns) Veth() string { return "mlv-" + n.Name }

// Port is the fabric's end of the cable to a NIC of the node.
func (n Netns) Port(nic string) string { return n.Name + "-" + nic }

// Dir is the folder of what belongs to this namespace alone.
func (n Netns) Dir() string { return State("nodes", n.Name) }

// RDMADir is the folder of the node's stand-in RDMA devices.
func RDMADir(node string) string { return State("nodes", node, "rdma") }

// State joins parts to the state folder.
func State(parts ...string) string {
	return filepath.Join(append([]string{StateDir}, parts...)...)
}

// CacheDir is what outlives down: compiled binaries, root file systems and
// images, each under a name made of what it was made of.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: %w; set HOME or XDG_CACHE_HOME", err)
	}
	return filepath.Join(base, "ml-dev-env", "localcluster"), nil
}

// Kubeconfig is the administrator's.
func Kubeconfig() string { return State("kubeconfig") }
