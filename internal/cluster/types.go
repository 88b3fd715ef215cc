// SPDX-License-Identifier: Apache-2.0

// Package cluster reads cluster files, clusters/NAME.yaml: the facts about a cluster that ml-dev-env needs to train on it.
package cluster

import (
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// ConfigMapPrefix is before the cluster's name in the name of the ConfigMap that an installed cluster file is.
	ConfigMapPrefix = "mlenv-cluster-"
	// TrustedCA is the ConfigMap that OpenShift fills with the certificates that the cluster trusts, in a namespace where ml-dev-env
	// is installed.
	TrustedCA = "mlenv-trusted-ca"
	// TrustedCAKey is the key of a ConfigMap with certificates.
	TrustedCAKey = "ca-bundle.crt"
)

// File is a cluster file. Keys that are absent have the defaults of Default.
type File struct {
	Cluster   Cluster   `json:"cluster"`
	Nodes     Nodes     `json:"nodes,omitempty"`
	GPUs      GPUs      `json:"gpus,omitempty"`
	Storage   Storage   `json:"storage,omitempty"`
	Network   Network   `json:"network,omitempty"`
	Security  Security  `json:"security,omitempty"`
	Resources Resources `json:"resources,omitempty"`
	NCCL      NCCL      `json:"nccl,omitempty"`
	Image     Image     `json:"image,omitempty"`
	Notify    Notify    `json:"notify,omitempty"`
	// Development is for environments that persons keep, as mlenv up creates them.
	Development Development `json:"development,omitempty"`
	// Monitoring is for clusters with Prometheus.
	Monitoring Monitoring `json:"monitoring,omitempty"`
	// A note on the cluster: kept and shown by mlenv validate.
	Notes string `json:"notes,omitempty"`
}

// Cluster identifies the cluster that the file describes.
type Cluster struct {
	// Name of the cluster, a DNS label: its ConfigMap is mlenv-cluster-NAME.
	Name string `json:"name"`
	// Host of the API server without a scheme: a run on another cluster is refused.
	API string `json:"api"`
	// Default namespace.
	Namespace string `json:"namespace"`
	// A description of the cluster, for readers of the file.
	Description string `json:"description,omitempty"`
}

// Nodes lists the nodes that may be used.
type Nodes struct {
	// Names of the nodes that may be used; null or absent for any node with GPUs.
	GPUNodes NodeNames `json:"gpu_nodes,omitempty"`
	// Taints of the GPU nodes in addition to nvidia.com/gpu (which is always tolerated).
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// Label of the Kubernetes nodes that names their rack; reading it requires the right to read nodes. It wins over
	// rack_pattern. If both are empty, the queue's topology or the zone determines the rack.
	RackLabel string `json:"rack_label,omitempty"`
	// Regular expression on the names of Kubernetes nodes whose first group is the rack: as in r4pcc(\d+)u.
	RackPattern string `json:"rack_pattern,omitempty"`
	// LocalQueue of Kueue in the namespace that admits each environment as one group.
	Queue string `json:"queue,omitempty"`
	// How long ranks have to save after SIGTERM when they are stopped, from 1s to 1h, unless a run requests another time; absent for
	// 30s. It is the pods' termination grace.
	StopGrace Duration `json:"stop_grace,omitempty"`
}

// Toleration has Kubernetes' own fields, with their meaning.
type Toleration struct {
	// The taint's key; absent for every key.
	Key string `json:"key,omitempty"`
	// Whether the taint's value counts.
	Operator string `json:"operator,omitempty" jsonschema:"enum=Exists,enum=Equal,default=Equal"`
	// The taint's value, with Equal.
	Value string `json:"value,omitempty"`
	// The taint's effect; absent for every effect.
	Effect string `json:"effect,omitempty" jsonschema:"enum=NoSchedule,enum=PreferNoSchedule,enum=NoExecute"`
}

// GPUs are what a node of an environment has.
type GPUs struct {
	// GPUs of a node of an environment, unless a run requests another number.
	PerNode int `json:"per_node,omitempty" jsonschema:"minimum=1,default=4"`
	// Model of the GPUs, as nvidia-smi names it.
	Type string `json:"type,omitempty"`
	// Nodes of an environment, unless a run requests another number.
	DefaultNodes int `json:"default_nodes,omitempty" jsonschema:"minimum=1,default=2"`
}

// Storage describes the claims for workspace and datasets.
type Storage struct {
	// Storage class that gives ReadWriteMany filesystems.
	ClassRWX string `json:"class_rwx,omitempty"`
	// Storage class that gives ReadWriteOnce filesystems.
	ClassRWO string `json:"class_rwo,omitempty"`
	// Size of the claim for /workspace; an existing smaller claim is expanded if the file has this key and the claim's
	// class allows it; a larger one is kept.
	WorkspaceSize Quantity `json:"workspace_size,omitempty"`
	// Size of the claim for /datasets, in the same way.
	DatasetsSize Quantity `json:"datasets_size,omitempty"`
	// Claim that every environment mounts at /workspace in mode rwx (default: ml-dev-workspace for ml-dev-env and
	// ml-dev-env-NAME, otherwise NAME-workspace); created if it does not exist.
	WorkspaceClaim string `json:"workspace_claim,omitempty"`
	// Claim that every environment mounts at /datasets in mode rwx (default: ml-dev-datasets or NAME-datasets), as in
	// ml-datasets; created if it does not exist.
	DatasetsClaim string `json:"datasets_claim,omitempty"`
	// Whether the nodes share their files (rwx) or each has claims of its own; auto is the mode of the claims that exist, else rwx
	// if class_rwx provides a ReadWriteMany filesystem.
	Mode StorageMode `json:"mode,omitempty" jsonschema:"enum=rwx,enum=volumeClaimTemplates,enum=auto"`
	// Where the caches of Hugging Face, Inductor and Triton are: on the workspace claim, or on each node's own disk, which is
	// deleted with the environment (default: node if the nodes share their files, otherwise claim).
	Caches CachePlace `json:"caches,omitempty" jsonschema:"enum=claim,enum=node"`
}

// StorageMode determines whether the nodes of an environment share their files.
type StorageMode string

const (
	// SharedStorage mounts the same claims on every node.
	SharedStorage StorageMode = "rwx"
	// NodeStorage creates separate claims for each node.
	NodeStorage StorageMode = "volumeClaimTemplates"
	// AutoStorage is the mode of the claims that exist, else SharedStorage if class_rwx provides a ReadWriteMany filesystem, else
	// NodeStorage.
	AutoStorage StorageMode = "auto"
)

// CachePlace is where caches are that programs protect by locks and renames of files.
type CachePlace string

// The places of caches.
const (
	ClaimCaches CachePlace = "claim"
	NodeCaches  CachePlace = "node"
)

// Network describes how nodes communicate.
type Network struct {
	RDMA  RDMA  `json:"rdma,omitempty"`
	TCP   TCP   `json:"tcp,omitempty"`
	Proxy Proxy `json:"proxy,omitempty"`
	// ConfigMap whose key ca-bundle.crt holds every CA to trust: the public ones too. OpenShift fills one that is
	// labelled config.openshift.io/inject-trusted-cabundle=true.
	TrustedCA string `json:"trusted_ca,omitempty"`
}

// RDMA is what the file expects of the cluster's RDMA network. Devices and interfaces are no setting: mlenv detects the real ones.
type RDMA struct {
	// Whether mode auto may take RDMA, and mode rdma is possible.
	Enabled bool `json:"enabled,omitempty"`
	// RDMA devices that are expected, separated by commas; pods that see the host's devices use only these.
	Devices List `json:"devices,omitempty"`
	// Their network interfaces that are expected, separated by commas.
	Interfaces List `json:"interfaces,omitempty"`
	// GID index that is expected, from 0 to 255; what is used is detected.
	GIDIndex string `json:"gid_index,omitempty"`
	// NCCL_NET_GDR_LEVEL that is expected: LOC, NVL, PIX, PXB, PHB, SYS or 0 to 5; what is used is detected.
	GDRLevel string `json:"gdr_level,omitempty"`
	// NCCL_CROSS_NIC that is expected, 0 to 2: whether a ring may use different rails on different nodes.
	CrossNIC string `json:"cross_nic,omitempty"`
	// NCCL_IB_TIMEOUT, N from 0 to 31: a message waits 4.096 µs times 2 to the power N for its acknowledgement.
	IBTimeout string `json:"ib_timeout,omitempty"`
	// NCCL_IB_TC, 0 to 255: the traffic class that the switches treat as lossless.
	TrafficClass string `json:"traffic_class,omitempty"`
	// NCCL_IB_SL, 0 to 15: the service level of InfiniBand.
	ServiceLevel string `json:"service_level,omitempty"`
	// NCCL_MIN_NCHANNELS, 1 to 64: the least number of channels that NCCL uses.
	MinNChannels string `json:"min_nchannels,omitempty"`
	// MTU in bytes that the interfaces of the rails are expected to have, as in 9000.
	MTU int `json:"mtu,omitempty" jsonschema:"minimum=576,maximum=65520"`
	// Network attachments of a pod in the order of net1 and so on, as namespace/name, or as name in the environment's own namespace.
	Attachments []string `json:"attachments,omitempty"`
	// Extended resources of a pod and how many of each, as in openshift.io/eno5np0rdma: 1.
	Resources ResourceCounts `json:"resources,omitempty"`
	// Whether pods in mode rdma share their host's network: for host devices over Ethernet, whose addresses pods
	// cannot use otherwise; one environment per host, no NetworkPolicy applies.
	HostNetwork bool `json:"host_network,omitempty"`
	// Bus bandwidth of a node in GB/s (10^9 bytes per second) as nccl-tests prints it: as in 200GB/s. Without it, the
	// sum of the rates of a node's active devices is expected.
	ExpectedBandwidth Bandwidth `json:"expected_bandwidth,omitempty"`
	Expected          Figures   `json:"expected,omitempty"`
}

// Figures are what check-fabric should measure in addition to the ring over all GPUs. 0 is not set.
type Figures struct {
	// Ring of one GPU per node, and the most that a rail alone is expected to reach.
	OneGPU Bandwidth `json:"one_gpu,omitempty"`
	// All_reduce inside a node, as in 261GB/s.
	Inside Bandwidth `json:"inside,omitempty"`
	// What each node of a pair sends to the other, all its GPUs together.
	Pair Bandwidth `json:"pair,omitempty"`
	// Copies from the host's memory to each GPU, as in 28.7GB/s.
	HostCopy Bandwidth `json:"host_copy,omitempty"`
	// RDMA between the memories of two hosts on one rail, as in 28.3GB/s.
	HostRDMA Bandwidth `json:"host_rdma,omitempty"`
}

// AddedCapabilities returns all capabilities that pods in mode RDMA ask for.
func (s Security) AddedCapabilities() []string {
	var all []string
	if s.IPCLock {
		all = append(all, "IPC_LOCK")
	}
	for _, capability := range s.Capabilities {
		if !slices.Contains(all, capability) {
			all = append(all, capability)
		}
	}
	return all
}

// AttachmentsIn returns the attachments of an environment in a namespace, as namespace/name.
func (r RDMA) AttachmentsIn(namespace string) (full []string) {
	for _, attachment := range r.Attachments {
		if !strings.Contains(attachment, "/") {
			attachment = namespace + "/" + attachment
		}
		full = append(full, attachment)
	}
	return full
}

// Plugged reports whether pods get devices by attachments and resources of a device plugin. Otherwise they use the host's.
func (r RDMA) Plugged() bool { return len(r.Attachments) > 0 || len(r.Resources) > 0 }

// SharedDevices is the form in which the RDMA shared device plugin gives many pods the same cards.
const SharedDevices = "shared devices"

// SharedPrefix begins the names of the RDMA shared device plugin's resources, unless its configuration has another prefix.
const SharedPrefix = "rdma/"

// DescribeForm describes how pods get their devices.
func (r RDMA) DescribeForm() string {
	shared := func(resource string) bool { return strings.HasPrefix(resource, SharedPrefix) }
	switch names := slices.Collect(maps.Keys(r.Resources)); {
	case !r.Plugged():
		return "host devices"
	case len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !shared(name) }):
		return SharedDevices
	}
	return "SR-IOV"
}

// PrivilegedSCC is OpenShift's constraint that allows everything.
const PrivilegedSCC = "privileged"

// Pinned returns the SCC that pods in mode RDMA are pinned to, "" for none.
func (s Security) Pinned() string {
	if s.SCC == "" && s.RequiresPrivilegedSCC {
		return PrivilegedSCC
	}
	return s.SCC
}

// TCP describes how nodes communicate without RDMA.
type TCP struct {
	// NCCL_SOCKET_IFNAME of mode tcp: interfaces that begin with these names, or with ^ all others.
	InterfaceExclude string `json:"interface_exclude,omitempty"`
	// NCCL_P2P_LEVEL, in both modes: how far apart GPUs of a node may be and still copy directly, as in NVL.
	P2PLevel string `json:"p2p_level,omitempty"`
	// Bus bandwidth over TCP sockets in GB/s, which check-fabric expects in mode tcp. Without
	// it, nothing is expected.
	ExpectedBandwidth Bandwidth `json:"expected_bandwidth,omitempty"`
}

// Proxy is how pods reach addresses outside the cluster if they have no direct access.
type Proxy struct {
	// Proxy for http:// addresses: as in http://proxy.example.com:3128.
	HTTP string `json:"http,omitempty"`
	// Proxy for https:// addresses; usually the same one.
	HTTPS string `json:"https,omitempty"`
	// Hosts, domains and ranges to reach directly, separated by commas. The cluster's own names are always reached
	// directly.
	NoProxy List `json:"no_proxy,omitempty"`
}

// Image is the image of trainings: a finished one, or one to build.
type Image struct {
	// Training image of an environment that names none; not together with flavour.
	Name string `json:"name,omitempty"`
	// Secret to pull images with and the bases of images; the pods use it in addition to their service account's
	// Secrets.
	PullSecret string `json:"pull_secret,omitempty"`
	// Secret with which builds pull their base (default: image.pull_secret); - means the Secret of the service
	// account builder.
	BasePullSecret string `json:"base_pull_secret,omitempty"`
	// Folder below tasks/mlenv-build-image/images/ to build the training image from if none is named.
	Flavour string `json:"flavour,omitempty"`
	// Base image of the flavour: its build argument BASE_IMAGE.
	Base string `json:"base,omitempty"`
	// Build arguments of the flavour: each KEY=VALUE; no secrets as an image's history shows them.
	BuildArgs      []string       `json:"build_args,omitempty"`
	BuildResources BuildResources `json:"build_resources,omitempty"`
}

// Notify names the Secret with the URL to which runs post their events.
type Notify struct {
	// Secret whose key url is the address to which trainings post their start, restarts, hangs and end, such as an
	// incoming webhook of Slack; param notify overrides it.
	Secret string `json:"secret,omitempty"`
}

// Development is how environments that persons keep are released.
type Development struct {
	// How long an environment that a user keeps may be unused before it is released; 0 means never. Use is a job, an open shell, a
	// browser session or a busy GPU.
	IdleTimeout Duration `json:"idle_timeout,omitempty"`
}

// Monitoring is how Prometheus finds the metrics of the nodes.
type Monitoring struct {
	// Whether each environment gets a PodMonitor, by which Prometheus finds the agents' metrics; this requires the right to create
	// podmonitors.
	PodMonitor bool `json:"pod_monitor,omitempty"`
	// Labels of the PodMonitors, by which a Prometheus chooses them: as in release: kube-prometheus-stack.
	Labels map[string]string `json:"labels,omitempty"`
}

// BuildResources are what a build pod asks for and may use.
type BuildResources struct {
	Requests BuildResourceList `json:"requests,omitempty"`
	Limits   BuildResourceList `json:"limits,omitempty"`
}

// BuildResourceList has memory, processors and disk, each zero for the cluster's default.
type BuildResourceList struct {
	// Memory of the build's pod.
	Memory Quantity `json:"memory,omitempty"`
	// Processors of the build's pod.
	CPU Quantity `json:"cpu,omitempty"`
	// Disk of the node; an image of 12 GB takes about 50Gi to build, with its cache.
	EphemeralStorage Quantity `json:"ephemeral_storage,omitempty"`
}

// Security is what the pods may do in mode RDMA. TCP needs only the service account.
type Security struct {
	// Service account of the nodes' pods.
	ServiceAccount string `json:"service_account,omitempty"`
	// User ID of the nodes' pods, and the group that owns their claims, on a cluster that is not OpenShift: as in 1001. OpenShift chooses
	// both itself.
	RunAsUser int `json:"run_as_user,omitempty"`
	// Whether pods in mode rdma are privileged, as the host's devices require.
	RequiresPrivilegedSCC bool `json:"requires_privileged_scc,omitempty"`
	// Whether pods in mode rdma always ask for the capability IPC_LOCK, to lock memory without limit; otherwise only if CRI-O's limit is
	// too low for RDMA and a constraint that they may use allows it.
	IPCLock bool `json:"ipc_lock,omitempty"`
	// Linux capabilities of the training container in mode rdma in addition to IPC_LOCK: as in SYS_PTRACE for py-spy.
	Capabilities []string `json:"capabilities,omitempty"`
	// SecurityContextConstraints that pods are pinned to in mode rdma: as in nccl-scc. Without it the cluster chooses,
	// or takes privileged if requires_privileged_scc is true.
	SCC string `json:"scc,omitempty"`
}

// Resources are a node's memory and processors.
type Resources struct {
	Requests ResourceList `json:"requests,omitempty"`
	Limits   ResourceList `json:"limits,omitempty"`
}

// ResourceList has memory and processors.
type ResourceList struct {
	// Memory of a node's pod.
	Memory Quantity `json:"memory,omitempty"`
	// Processors of a node's pod.
	CPU Quantity `json:"cpu,omitempty"`
}

// NCCL are settings of NCCL without a key of their own.
type NCCL struct {
	// NCCL_DEBUG: how much NCCL logs, WARN, INFO or TRACE.
	Debug string `json:"debug,omitempty"`
	// NCCL_* variables that are forced whatever was detected: as in NCCL_IB_TC: "106".
	Env map[string]string `json:"env,omitempty"`
}

// Default returns the file whose keys all have their defaults.
func Default() File {
	return File{
		GPUs: GPUs{PerNode: 4, DefaultNodes: 2},
		Storage: Storage{
			// Small enough for the quota of a sandbox. A claim can be expanded, but not made smaller.
			WorkspaceSize: MustParseQuantity("20Gi"), DatasetsSize: MustParseQuantity("10Gi"), Mode: AutoStorage,
		},
		Network: Network{
			// All shipped files have these: a port may be down for some seconds, and fewer channels do not fill the rails.
			RDMA: RDMA{IBTimeout: "22", MinNChannels: "4"},
			TCP:  TCP{InterfaceExclude: "^lo,docker0", P2PLevel: "NVL"},
		},
		Security: Security{ServiceAccount: "ml-dev-sa"},
		Resources: Resources{
			Requests: ResourceList{Memory: MustParseQuantity("128Gi"), CPU: MustParseQuantity("32")},
			Limits:   ResourceList{Memory: MustParseQuantity("256Gi"), CPU: MustParseQuantity("64")},
		},
		NCCL:        NCCL{Debug: "INFO"},
		Development: Development{IdleTimeout: Duration(2 * time.Hour)},
	}
}
