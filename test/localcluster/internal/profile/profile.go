// Package profile has what is particular to each of the clusters that ml-dev-env has a cluster file for.
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

// Profile is one cluster.
type Profile struct {
	// API is the name of the API server, which its certificate and the Infrastructure have.
	API string `json:"api"`
	// Nodes are those with GPUs that run.
	Nodes []string `json:"nodes"`
	// AbsentNodes are those with GPUs that are switched off.
	AbsentNodes []string `json:"absentNodes"`
	// Labels are those of all nodes with GPUs, besides NVIDIA's.
	Labels map[string]string `json:"labels"`
	// Processors and Memory are what the kubelet of each node with GPUs believes to have.
	Processors int               `json:"processors"`
	Memory     resource.Quantity `json:"memory"`
	// Memlock is how much memory a container may lock without IPC_LOCK.
	Memlock resource.Quantity `json:"memlock"`
	RDMA    rdma.Layout       `json:"rdma"`
	// StorageClasses are those there are.
	StorageClasses []string `json:"storageClasses"`
	// Constraints are the SecurityContextConstraints besides OpenShift's own.
	Constraints []string `json:"constraints"`
}

// Names returns those of all profiles.
func Names() []string {
	files, err := data.ReadDir("data")
	if err != nil {
		panic(err) // it is embedded
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
		return p, fmt.Errorf("no profile is named %q; there are %s", name, strings.Join(Names(), ", "))
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
