package cluster

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite clusters/schema.json")

const clustersDir = "../../clusters"

func TestShippedFiles(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(clustersDir, "*.yaml"))
	if err != nil || len(files) != 4 {
		t.Fatalf("cluster files: %v, %v", files, err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Load(path, content)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if want := strings.TrimSuffix(filepath.Base(path), ".yaml"); f.Cluster.Name != want {
			t.Errorf("%s is about cluster %q", path, f.Cluster.Name)
		}
		if first, _, _ := strings.Cut(string(content), "\n"); first != "# yaml-language-server: $schema=schema.json" {
			t.Errorf("%s does not name the schema in its first line: %q", path, first)
		}
	}
}

func TestValuesArrive(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(clustersDir, "cairo.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := Load("cairo.yaml", content)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(NodeNames{"moc-r4pcc02u15", "moc-r4pcc02u16"}, f.Nodes.GPUNodes); diff != "" {
		t.Errorf("gpu_nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(List{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"}, f.Network.RDMA.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if f.Resources.Limits.Memory.Value() != 256<<30 || f.Resources.Requests.CPU.Value() != 32 || !f.Security.IPCLock || f.Network.RDMA.CrossNIC != "1" {
		t.Errorf("values did not arrive: %+v", f)
	}
}

func TestDefaults(t *testing.T) {
	f, err := Load("x.yaml", []byte("cluster: {name: x, api: api.x.example.com, namespace: n}\nstorage: {class_rwo: block}\nnodes:\n  gpu_nodes: null\n"))
	if err != nil {
		t.Fatal(err)
	}
	if f.GPUs.PerNode != 4 || f.Storage.Mode != NodeStorage || f.Nodes.GPUNodes != nil || f.Security.ServiceAccount != "ml-dev-sa" {
		t.Errorf("defaults: %+v", f)
	}
}

// mistakes are one file with many of them, and where each must be reported.
const mistakes = `cluster:
  name: Barcelona
  api: https://api.example.com
  namspace: nccl-test
nodes:
  gpu_nodes:
  - node-a
  - node-b
  - node-a
gpus:
  per_node: "4"
  default_nodes: 9
storage:
  mode: rwx
  workspace_size: 100GB
network:
  rdma:
    enabled: yes please
    devices: "mlx5_6,,mlx5_7"
    gid_index: 300
  wifi: true
resources:
  requests: {memory: 512Gi, cpu: 32}
  limits: {memory: 256Gi, memory: 1Gi}
nccl: [INFO]
`

func TestEveryMistakeAtOnce(t *testing.T) {
	_, err := Load("m.yaml", []byte(mistakes))
	want := []string{
		`m.yaml:2:9: cluster.name: "Barcelona": a lowercase RFC 1123 label must`,
		`m.yaml:3:8: cluster.api: "https://api.example.com": want a host without a scheme, as in api.example.com`,
		`m.yaml:4:3: cluster.namspace: unknown key; did you mean "namespace"?`,
		`m.yaml:9:5: nodes.gpu_nodes[2]: "node-a": is listed at gpu_nodes[0] already`,
		`m.yaml:11:13: gpus.per_node: "4": want a whole number without quotes`,
		`m.yaml:12:18: gpus.default_nodes: "9": is more than the 3 nodes`,
		`storage.class_rwx: is missing; mode rwx needs a storage class`,
		`m.yaml:15:19: storage.workspace_size: "100GB": not a quantity; did you mean "100G"?`,
		`m.yaml:18:14: network.rdma.enabled: "yes please": want true or false`,
		`m.yaml:19:14: network.rdma.devices: "mlx5_6,,mlx5_7": a name is empty`,
		`m.yaml:20:16: network.rdma.gid_index: "300": want a whole number from 0 to 255`,
		`m.yaml:21:3: network.wifi: unknown key; want one of rdma, tcp`,
		`m.yaml:23:22: resources.requests.memory: "512Gi": is more than resources.limits.memory, 256Gi`,
		`m.yaml:24:27: resources.limits.memory: the key stands in line 24 already`,
		`m.yaml:25:7: nccl: want keys and values, not a list`,
	}
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("Load = %v, want Problems", err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("missing: %s", w)
		}
	}
	if len(problems) != len(want) {
		t.Errorf("%d problems, want %d:\n%v", len(problems), len(want), err)
	}
	for i := 1; i < len(problems); i++ {
		if problems[i].Line < problems[i-1].Line {
			t.Errorf("line %d is reported after line %d", problems[i].Line, problems[i-1].Line)
		}
	}
}

func TestNotAClusterFile(t *testing.T) {
	for content, want := range map[string]string{
		"":                       "the file is empty",
		"a: b: c":                "not YAML",
		"- a\n":                  "want keys and values, not a list",
		"text":                   "want keys and values, not a single value",
		"cluster: &c {name: x}":  "anchors and aliases are not supported",
		"cluster: {}\n---\na: b": "a second document",
		"storage: {mode: rwx, workspace_size: 0}\n": "want more than nothing",
		"resources: {requests: {memory: 128m}}":     "is less than a mebibyte",
		"nodes: {gpu_nodes: []}":                    "an empty list allows no node",
	} {
		_, err := Load("f.yaml", []byte(content))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q) = %v, want %q", content, err, want)
		}
	}
}

func TestSchemaIsCurrent(t *testing.T) {
	want, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(clustersDir, "schema.json")
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("clusters/schema.json is old; run make generate (-want +got):\n%s", diff)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(mistakes))
	files, err := filepath.Glob(filepath.Join(clustersDir, "*.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := Load("f.yaml", content)
		if err == nil && len(file.Validate()) > 0 {
			t.Errorf("Load accepted what Validate refuses: %v", file.Validate())
		}
		var problems Problems
		if err != nil && (!errors.As(err, &problems) || len(problems) == 0) {
			t.Errorf("Load = %v, want Problems", err)
		}
	})
}
