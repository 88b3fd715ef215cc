// Package cluster reads cluster files: what ml-dev-env must know of a cluster
// to train on it, as clusters/NAME.yaml says it.
package cluster

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
	// Notes are for people; they are kept and shown.
	Notes string `json:"notes,omitempty" jsonschema:"description=for people: kept and shown by mlenv validate"`
}

// Cluster says which cluster the file is about.
type Cluster struct {
	Name        string `json:"name" jsonschema:"description=a DNS label"`
	API         string `json:"api" jsonschema:"description=host of the API server without a scheme: compared with where a run is"`
	Namespace   string `json:"namespace" jsonschema:"description=default namespace"`
	Description string `json:"description,omitempty"`
}

// Nodes lists the nodes that may be used.
type Nodes struct {
	// GPUNodes is nil where any node with GPUs may be used.
	GPUNodes NodeNames `json:"gpu_nodes,omitempty"`
}

// GPUs are what a node of an environment has.
type GPUs struct {
	PerNode      int    `json:"per_node,omitempty" jsonschema:"minimum=1,default=4"`
	Type         string `json:"type,omitempty" jsonschema:"description=as nvidia-smi names it"`
	DefaultNodes int    `json:"default_nodes,omitempty" jsonschema:"minimum=1,default=2,description=nodes of an environment that does not say how many"`
}

// Storage says where workspace and datasets are kept.
type Storage struct {
	ClassRWX      string      `json:"class_rwx,omitempty" jsonschema:"description=storage class that gives ReadWriteMany filesystems"`
	ClassRWO      string      `json:"class_rwo,omitempty" jsonschema:"description=storage class that gives ReadWriteOnce filesystems"`
	WorkspaceSize Quantity    `json:"workspace_size,omitempty"`
	DatasetsSize  Quantity    `json:"datasets_size,omitempty"`
	Mode          StorageMode `json:"mode,omitempty"`
}

// StorageMode says whether the nodes of an environment share their files.
type StorageMode string

// The storage modes.
const (
	// SharedStorage mounts the same claims on every node.
	SharedStorage StorageMode = "rwx"
	// NodeStorage makes claims of its own for each node.
	NodeStorage StorageMode = "volumeClaimTemplates"
)

// Network says how nodes talk.
type Network struct {
	RDMA RDMA `json:"rdma,omitempty"`
	TCP  TCP  `json:"tcp,omitempty"`
}

// RDMA is what is expected of the cluster's RDMA network. Devices and
// interfaces are an expectation, not a setting: what is there is detected.
type RDMA struct {
	Enabled      bool   `json:"enabled,omitempty"`
	Devices      List   `json:"devices,omitempty"`
	Interfaces   List   `json:"interfaces,omitempty"`
	GIDIndex     string `json:"gid_index,omitempty"`
	GDRLevel     string `json:"gdr_level,omitempty"`
	CrossNIC     string `json:"cross_nic,omitempty"`
	IBTimeout    string `json:"ib_timeout,omitempty"`
	MinNChannels string `json:"min_nchannels,omitempty"`
}

// TCP is how nodes talk without RDMA.
type TCP struct {
	// InterfaceExclude is NCCL_SOCKET_IFNAME, as in "^lo,docker0".
	InterfaceExclude string `json:"interface_exclude,omitempty" jsonschema:"description=NCCL_SOCKET_IFNAME"`
	P2PLevel         string `json:"p2p_level,omitempty" jsonschema:"description=NCCL_P2P_LEVEL"`
}

// Security is what the pods may do.
type Security struct {
	ServiceAccount        string `json:"service_account,omitempty"`
	RequiresPrivilegedSCC bool   `json:"requires_privileged_scc,omitempty"`
	IPCLock               bool   `json:"ipc_lock,omitempty"`
}

// Resources are a node's, beside its GPUs.
type Resources struct {
	Requests ResourceAmounts `json:"requests,omitempty"`
	Limits   ResourceAmounts `json:"limits,omitempty"`
}

// ResourceAmounts is memory and processors.
type ResourceAmounts struct {
	Memory Quantity `json:"memory,omitempty"`
	CPU    Quantity `json:"cpu,omitempty"`
}

// NCCL are settings of NCCL that no other key has.
type NCCL struct {
	Debug string `json:"debug,omitempty"`
}

// Default is what a file that says nothing but its cluster means.
func Default() File {
	return File{
		GPUs: GPUs{PerNode: 4, DefaultNodes: 2},
		Storage: Storage{
			WorkspaceSize: MustParseQuantity("100Gi"), DatasetsSize: MustParseQuantity("500Gi"), Mode: NodeStorage,
		},
		Network:  Network{TCP: TCP{InterfaceExclude: "^lo,docker0", P2PLevel: "NVL"}},
		Security: Security{ServiceAccount: "ml-dev-sa"},
		Resources: Resources{
			Requests: ResourceAmounts{Memory: MustParseQuantity("128Gi"), CPU: MustParseQuantity("32")},
			Limits:   ResourceAmounts{Memory: MustParseQuantity("256Gi"), CPU: MustParseQuantity("64")},
		},
		NCCL: NCCL{Debug: "INFO"},
	}
}
