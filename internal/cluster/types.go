// Package cluster reads cluster files, clusters/NAME.yaml: the facts about a cluster that ml-dev-env needs to train on it.
package cluster

import "slices"

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
	// Monitoring is for clusters with Prometheus.
	Monitoring Monitoring `json:"monitoring,omitempty"`
	Notes      string     `json:"notes,omitempty" jsonschema:"description=a note on the cluster: kept and shown by mlenv validate"`
}

// Cluster identifies the cluster that the file describes.
type Cluster struct {
	Name        string `json:"name" jsonschema:"description=a DNS label"`
	API         string `json:"api" jsonschema:"description=host of the API server without a scheme: a run on another cluster is refused"`
	Namespace   string `json:"namespace" jsonschema:"description=default namespace"`
	Description string `json:"description,omitempty" jsonschema_description:"a description of the cluster, for readers of the file"`
}

// Nodes lists the nodes that may be used.
type Nodes struct {
	GPUNodes    NodeNames    `json:"gpu_nodes,omitempty" jsonschema_description:"names of the nodes that may be used; null or absent for any node with GPUs"`
	Tolerations []Toleration `json:"tolerations,omitempty" jsonschema:"description=taints of the GPU nodes in addition to nvidia.com/gpu (which is always tolerated)"`
	// RackLabel wins over RackPattern. If both are empty, the queue's topology or the zone determines the rack.
	RackLabel   string `json:"rack_label,omitempty" jsonschema:"description=label of the Kubernetes nodes that names their rack; reading it takes the right to read nodes"`
	RackPattern string `json:"rack_pattern,omitempty" jsonschema:"description=regular expression on the names of Kubernetes nodes whose first group is the rack: as in r4pcc(\\d+)u"`
	Queue       string `json:"queue,omitempty" jsonschema:"description=LocalQueue of Kueue in the namespace that admits each environment as one group"`
}

// Toleration has Kubernetes' own fields, with their meaning.
type Toleration struct {
	Key      string `json:"key,omitempty" jsonschema:"description=the taint's key; absent for every key"`
	Operator string `json:"operator,omitempty" jsonschema:"enum=Exists,enum=Equal,default=Equal" jsonschema_description:"whether the taint's value counts"`
	Value    string `json:"value,omitempty" jsonschema_description:"the taint's value, with Equal"`
	Effect   string `json:"effect,omitempty" jsonschema:"enum=NoSchedule,enum=PreferNoSchedule,enum=NoExecute,description=absent for every effect"`
}

// GPUs are what a node of an environment has.
type GPUs struct {
	PerNode      int    `json:"per_node,omitempty" jsonschema:"minimum=1,default=4" jsonschema_description:"GPUs of a node of an environment, unless a run requests another number"`
	Type         string `json:"type,omitempty" jsonschema:"description=as nvidia-smi names it"`
	DefaultNodes int    `json:"default_nodes,omitempty" jsonschema:"minimum=1,default=2,description=nodes of an environment, unless a run requests another number"`
}

// Storage describes the claims for workspace and datasets.
type Storage struct {
	ClassRWX      string      `json:"class_rwx,omitempty" jsonschema:"description=storage class that gives ReadWriteMany filesystems"`
	ClassRWO      string      `json:"class_rwo,omitempty" jsonschema:"description=storage class that gives ReadWriteOnce filesystems"`
	WorkspaceSize Quantity    `json:"workspace_size,omitempty" jsonschema_description:"size of a new claim for /workspace"`
	DatasetsSize  Quantity    `json:"datasets_size,omitempty" jsonschema_description:"size of a new claim for /datasets"`
	Mode          StorageMode `json:"mode,omitempty" jsonschema:"enum=rwx,enum=volumeClaimTemplates,enum=auto" jsonschema_description:"whether the nodes share their files (rwx) or each has claims of its own; auto is rwx if class_rwx provides a ReadWriteMany filesystem"`
}

// StorageMode determines whether the nodes of an environment share their files.
type StorageMode string

// The storage modes.
const (
	// SharedStorage mounts the same claims on every node.
	SharedStorage StorageMode = "rwx"
	// NodeStorage creates separate claims for each node.
	NodeStorage StorageMode = "volumeClaimTemplates"
	// AutoStorage is SharedStorage if class_rwx provides a ReadWriteMany filesystem, otherwise NodeStorage.
	AutoStorage StorageMode = "auto"
)

// Network describes how nodes communicate.
type Network struct {
	RDMA  RDMA  `json:"rdma,omitempty"`
	TCP   TCP   `json:"tcp,omitempty"`
	Proxy Proxy `json:"proxy,omitempty"`
	// TrustedCA may name a ConfigMap that OpenShift fills: one labelled config.openshift.io/inject-trusted-cabundle=true.
	TrustedCA string `json:"trusted_ca,omitempty" jsonschema:"description=ConfigMap whose key ca-bundle.crt holds every CA to trust: the public ones too"`
}

// RDMA is what the file expects of the cluster's RDMA network. Devices and interfaces are no setting: mlenv detects the real ones.
type RDMA struct {
	Enabled      bool           `json:"enabled,omitempty" jsonschema_description:"whether mode auto may take RDMA, and mode rdma is possible"`
	Devices      List           `json:"devices,omitempty" jsonschema_description:"RDMA devices that are expected, separated by commas; pods that see the host's devices use only these"`
	Interfaces   List           `json:"interfaces,omitempty" jsonschema_description:"their network interfaces that are expected, separated by commas"`
	GIDIndex     string         `json:"gid_index,omitempty" jsonschema_description:"GID index that is expected, from 0 to 255; what is used is detected"`
	GDRLevel     string         `json:"gdr_level,omitempty" jsonschema_description:"NCCL_NET_GDR_LEVEL that is expected: LOC, NVL, PIX, PXB, PHB, SYS or 0 to 5; what is used is detected"`
	CrossNIC     string         `json:"cross_nic,omitempty" jsonschema_description:"NCCL_CROSS_NIC that is expected, 0 to 2"`
	IBTimeout    string         `json:"ib_timeout,omitempty" jsonschema_description:"NCCL_IB_TIMEOUT, 0 to 31"`
	TrafficClass string         `json:"traffic_class,omitempty" jsonschema_description:"NCCL_IB_TC, 0 to 255: the traffic class that the switches treat as lossless"`
	ServiceLevel string         `json:"service_level,omitempty" jsonschema_description:"NCCL_IB_SL, 0 to 15"`
	MinNChannels string         `json:"min_nchannels,omitempty" jsonschema_description:"NCCL_MIN_NCHANNELS, 1 to 64"`
	MTU          int            `json:"mtu,omitempty" jsonschema:"minimum=576,maximum=65520" jsonschema_description:"MTU in bytes that the interfaces of the rails are expected to have, as in 9000"`
	Attachments  []string       `json:"attachments,omitempty" jsonschema:"description=network attachments of a pod as namespace/name: in the order of net1 and so on"`
	Resources    ResourceCounts `json:"resources,omitempty" jsonschema:"description=extended resources of a pod and how many of each: as in openshift.io/eno5np0rdma: 1"`
	HostNetwork  bool           `json:"host_network,omitempty" jsonschema_description:"whether pods in mode rdma share their host's network: for host devices over Ethernet, whose addresses pods cannot use otherwise; one environment per host, no NetworkPolicy applies"`
	// ExpectedBandwidth is 0 for the sum of the rates of a node's active devices.
	ExpectedBandwidth Bandwidth `json:"expected_bandwidth,omitempty" jsonschema:"description=bus bandwidth of a node in GB/s (10^9 bytes per second) as nccl-tests prints it: as in 200GB/s"`
	Expected          Figures   `json:"expected,omitempty"`
}

// Figures are what check-fabric should measure in addition to the ring over all GPUs. 0 is not set.
type Figures struct {
	OneGPU   Bandwidth `json:"one_gpu,omitempty" jsonschema_description:"ring of one GPU per node, and the most that a rail alone is expected to reach"`
	Inside   Bandwidth `json:"inside,omitempty" jsonschema_description:"all_reduce inside a node, as in 261GB/s"`
	Pair     Bandwidth `json:"pair,omitempty" jsonschema_description:"what each node of a pair sends to the other, all its GPUs together"`
	HostCopy Bandwidth `json:"host_copy,omitempty" jsonschema_description:"copies from the host's memory to each GPU, as in 28.7GB/s"`
	HostRDMA Bandwidth `json:"host_rdma,omitempty" jsonschema_description:"RDMA between the memories of two hosts on one rail, as in 28.3GB/s"`
}

// Adds are all capabilities that pods in mode RDMA ask for.
func (s Security) Adds() []string {
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

// SRIOV reports whether pods get devices by attachments and resources. Otherwise they use the host's.
func (r RDMA) SRIOV() bool { return len(r.Attachments) > 0 || len(r.Resources) > 0 }

// Pinned is the SCC that pods in mode RDMA are pinned to, "" for none.
func (s Security) Pinned() string {
	if s.SCC == "" && s.RequiresPrivilegedSCC {
		return "privileged"
	}
	return s.SCC
}

// TCP describes how nodes communicate without RDMA.
type TCP struct {
	InterfaceExclude string `json:"interface_exclude,omitempty" jsonschema:"description=NCCL_SOCKET_IFNAME of mode tcp"`
	P2PLevel         string `json:"p2p_level,omitempty" jsonschema:"description=NCCL_P2P_LEVEL"`
	// ExpectedBandwidth is 0 if nothing is expected.
	ExpectedBandwidth Bandwidth `json:"expected_bandwidth,omitempty" jsonschema_description:"bus bandwidth over TCP sockets in GB/s, which check-fabric expects in mode tcp and with --compare=tcp"`
}

// Proxy is how pods reach addresses outside the cluster if they have no direct access.
type Proxy struct {
	HTTP  string `json:"http,omitempty" jsonschema:"description=as in http://proxy.example.com:3128"`
	HTTPS string `json:"https,omitempty" jsonschema:"description=proxy for https:// addresses; mostly the same one"`
	// NoProxy need not have the cluster's own names, which are always reached directly.
	NoProxy List `json:"no_proxy,omitempty" jsonschema:"description=hosts and domains and ranges to reach directly: separated by commas"`
}

// Image is the image of trainings: a finished one, or one to build.
type Image struct {
	Name           string         `json:"name,omitempty" jsonschema:"description=training image of an environment that names none; not together with flavour"`
	PullSecret     string         `json:"pull_secret,omitempty" jsonschema:"description=Secret to pull images with and the bases of images; the pods use it in addition to those of their service account"`
	BasePullSecret string         `json:"base_pull_secret,omitempty" jsonschema:"description=Secret with which builds pull their base (default: image.pull_secret); - means that of the service account builder"`
	Flavour        string         `json:"flavour,omitempty" jsonschema:"description=folder below images/ to build the training image from if none is named"`
	Base           string         `json:"base,omitempty" jsonschema:"description=base image of the flavour: its build argument BASE_IMAGE"`
	BuildArgs      []string       `json:"build_args,omitempty" jsonschema:"description=build arguments of the flavour: each KEY=VALUE; no secrets as an image's history shows them"`
	BuildResources BuildResources `json:"build_resources,omitempty"`
}

// Notify names the Secret with the URL to which runs post their events.
type Notify struct {
	Secret string `json:"secret,omitempty" jsonschema_description:"Secret whose key url is the address to which trainings post their start, restarts, hangs and end, such as an incoming webhook of Slack; param notify overrides it"`
}

// Monitoring is how Prometheus finds the metrics of the nodes.
type Monitoring struct {
	// Whether each environment gets a PodMonitor, by which Prometheus finds the agents' metrics; it takes the right to create
	// podmonitors.
	PodMonitor bool `json:"pod_monitor,omitempty" jsonschema_description:"whether each environment gets a PodMonitor, by which Prometheus finds the agents' metrics; it takes the right to create podmonitors"`
	// Labels of the PodMonitors, by which a Prometheus chooses them: as in release: kube-prometheus-stack.
	Labels map[string]string `json:"labels,omitempty" jsonschema:"description=labels of the PodMonitors, by which a Prometheus chooses them: as in release: kube-prometheus-stack"`
}

// BuildResources are what a build pod asks for and may use.
type BuildResources struct {
	Requests BuildResourceList `json:"requests,omitempty"`
	Limits   BuildResourceList `json:"limits,omitempty"`
}

// BuildResourceList has memory, processors and disk, each zero for the cluster's default.
type BuildResourceList struct {
	Memory           Quantity `json:"memory,omitempty" jsonschema_description:"memory of the build's pod"`
	CPU              Quantity `json:"cpu,omitempty" jsonschema_description:"processors of the build's pod"`
	EphemeralStorage Quantity `json:"ephemeral_storage,omitempty" jsonschema_description:"disk of the node; an image of 12 GB takes about 50Gi to build, with its cache"`
}

// Security is what the pods may do in mode RDMA. TCP needs only the service account.
type Security struct {
	ServiceAccount        string   `json:"service_account,omitempty" jsonschema_description:"service account of the nodes' pods"`
	RequiresPrivilegedSCC bool     `json:"requires_privileged_scc,omitempty" jsonschema_description:"whether pods in mode rdma are privileged, as the host's devices require"`
	IPCLock               bool     `json:"ipc_lock,omitempty" jsonschema_description:"whether pods in mode rdma ask for the capability IPC_LOCK, to lock memory without limit"`
	Capabilities          []string `json:"capabilities,omitempty" jsonschema:"description=Linux capabilities of the training container in mode rdma in addition to IPC_LOCK: as in SYS_PTRACE for py-spy"`
	// SCC is empty for privileged if that is required, and otherwise for the cluster's choice.
	SCC string `json:"scc,omitempty" jsonschema:"description=SecurityContextConstraints that pods are pinned to in mode rdma: as in nccl-scc"`
}

// Resources are a node's memory and processors.
type Resources struct {
	Requests ResourceList `json:"requests,omitempty"`
	Limits   ResourceList `json:"limits,omitempty"`
}

// ResourceList has memory and processors.
type ResourceList struct {
	Memory Quantity `json:"memory,omitempty" jsonschema_description:"memory of a node's pod"`
	CPU    Quantity `json:"cpu,omitempty" jsonschema_description:"processors of a node's pod"`
}

// NCCL are settings of NCCL without a key of their own.
type NCCL struct {
	Debug string            `json:"debug,omitempty" jsonschema_description:"NCCL_DEBUG: WARN, INFO or TRACE"`
	Env   map[string]string `json:"env,omitempty" jsonschema:"description=NCCL_* variables that are forced whatever was detected: as in NCCL_IB_TC: \"106\""`
}

// Default returns the file whose keys all have their defaults.
func Default() File {
	return File{
		GPUs: GPUs{PerNode: 4, DefaultNodes: 2},
		Storage: Storage{
			WorkspaceSize: MustParseQuantity("100Gi"), DatasetsSize: MustParseQuantity("500Gi"), Mode: NodeStorage,
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
		NCCL: NCCL{Debug: "INFO"},
	}
}
