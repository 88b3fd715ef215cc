// SPDX-License-Identifier: Apache-2.0

// Package profile describes the particular properties of each cluster that ml-dev-env has a cluster file for.
//
// The API server's certificate and the Infrastructure cluster have the real name, so that cluster.api is compared as there. The profile's
// nodes have the real names and labels, and kubelets that believe to have 128 processors and 1 TiB of memory, so that the real requests
// fit; containers see this machine. Containers without IPC_LOCK may lock 8 MiB, as there. The cluster's other nodes exist as cordoned
// nodes that are NotReady, without a kubelet. For barcelona and h-kim, virtual functions and attachments have the cluster's device names.
// For cairo there are none: privileged pods with a GPU see the node's own devices mlx5_2 to 5, with GIDs of the node's addresses, and
// mlx5_0 for storage. With shared-devices, of which there is no cluster file, all pods share mlx5_2 to 5. nerc-production has no RDMA.
// Storage classes and constraints are those of the cluster; nccl-scc is only in barcelona and h-kim.
package profile

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
)

//go:embed data/*.yaml
var data embed.FS

// Profile describes one cluster.
type Profile struct {
	// API is the name of the API server in its certificate and in the Infrastructure object.
	API string `json:"api"`
	// Nodes are the running nodes with GPUs.
	Nodes []string `json:"nodes"`
	// AbsentNodes are the nodes with GPUs that are switched off.
	AbsentNodes []string `json:"absentNodes"`
	// Labels are the labels of all nodes with GPUs, in addition to NVIDIA's.
	Labels map[string]string `json:"labels"`
	// Processors and Memory are the size of the machine that the kubelet of each node with GPUs detects.
	Processors int               `json:"processors"`
	Memory     resource.Quantity `json:"memory"`
	// Memlock is the amount of memory that a container may lock without IPC_LOCK.
	Memlock resource.Quantity `json:"memlock"`
	RDMA    rdma.Layout       `json:"rdma"`
	// StorageClasses are the names of all storage classes.
	StorageClasses []string `json:"storageClasses"`
	// Constraints are the names of the SecurityContextConstraints in addition to OpenShift's own.
	Constraints []string `json:"constraints"`
}

// Names returns the names of all profiles.
func Names() []string {
	files, err := data.ReadDir("data")
	if err != nil {
		panic(err) // the folder is embedded
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return names
}

// Get returns the profile of that name.
func Get(name string) (Profile, error) {
	var p Profile
	if !slices.Contains(Names(), name) {
		return p, fmt.Errorf("no profile is named %q; the profiles are %s", name, strings.Join(Names(), ", "))
	}
	content, err := data.ReadFile(path.Join("data", name+".yaml"))
	if err != nil {
		return p, err
	}
	if err := yaml.UnmarshalStrict(content, &p); err != nil {
		return p, fmt.Errorf("reading profile %s: %w", name, err)
	}
	return p, nil
}
