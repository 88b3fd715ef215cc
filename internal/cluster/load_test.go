// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

const clustersDir = "../../clusters"

func TestShippedFiles(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(clustersDir, "*.yaml"))
	if err != nil || len(files) != 5 {
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
		if obsolete := f.Obsolete(); len(obsolete) > 0 {
			t.Errorf("%s has obsolete values: %v", path, obsolete)
		}
		if want := strings.TrimSuffix(filepath.Base(path), ".yaml"); f.Cluster.Name != want {
			t.Errorf("%s is about cluster %q", path, f.Cluster.Name)
		}
		if first, _, _ := strings.Cut(string(content), "\n"); first != "# yaml-language-server: $schema=schema.json" {
			t.Errorf("%s does not name the schema in its first line: %q", path, first)
		}
	}
}

// Each value of a real cluster's file has a comment with the document that it comes from, so that a difference between two documents is
// no riddle. The first comment of the file explains the words.
func TestSourcesOfShippedFiles(t *testing.T) {
	for _, name := range []string{"barcelona", "cairo", "h-kim", "nerc-production"} {
		values, _, _ := strings.Cut(read(t, name), "\nnotes:")
		checkSources(t, name+".yaml", values)
	}
}

var (
	sourceTag = regexp.MustCompile(`\((\w[\w-]*)\)`)
	yamlLine  = regexp.MustCompile(`^( *)(- )?([\w./-]+):? ?(.*)$`)
)

// checkSources checks the comment at each value or item, in the line before, or at a key above.
func checkSources(t *testing.T, file, content string) {
	t.Helper()
	known, before, inHeader := map[string]bool{}, "", true
	var above []bool // by indentation: whether the comment at that key has a source
	for i, line := range strings.Split(content, "\n") {
		text, comment, _ := strings.Cut(line, "#")
		inHeader = inHeader && text == ""
		for _, found := range sourceTag.FindAllStringSubmatch(comment, -1) {
			if known[found[1]] = known[found[1]] || inHeader; !known[found[1]] {
				t.Errorf("%s:%d: the file's first comment does not explain (%s)", file, i+1, found[1])
			}
		}
		found := yamlLine.FindStringSubmatch(strings.TrimRight(text, " "))
		if found == nil {
			before = comment
			continue
		}
		depth, isItem, value := len(found[1])/2, found[2] != "", found[4]
		if isItem {
			depth++ // items are indented as their key is
		}
		above = append(above[:min(depth, len(above))], sourceTag.MatchString(comment) || sourceTag.MatchString(before))
		if (value != "" || isItem) && !slices.Contains(above, true) {
			t.Errorf("%s:%d: %s: want a comment with its source", file, i+1, strings.TrimSpace(text))
		}
		before = ""
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(clustersDir, name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// What was measured on the clusters is expected of them.
func TestMeasuredFigures(t *testing.T) {
	load := func(name string) Network {
		f, err := Load(name, []byte(read(t, name)))
		if err != nil {
			t.Fatal(err)
		}
		return f.Network
	}
	type figures struct {
		Figures
		MTU       int
		RDMA, TCP string
	}
	of := func(n Network) figures {
		return figures{n.RDMA.Expected, n.RDMA.MTU, n.RDMA.ExpectedBandwidth.String(), n.TCP.ExpectedBandwidth.String()}
	}
	const tenth = GBps / 10
	for name, want := range map[string]figures{
		"barcelona": {Figures{Inside: 261 * GBps, OneGPU: 146 * tenth, Pair: 146 * tenth, HostRDMA: 283 * tenth, HostCopy: 287 * tenth}, 9000,
			"0GB/s", "0GB/s"},
		"h-kim": {Figures{}, 9000, "89.5GB/s", "1.05GB/s"},
	} {
		if diff := cmp.Diff(want, of(load(name))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestObsolete: the file is the sample from the architecture document that came with the scripts. Its pods would be
// privileged and have no rails.
func TestObsolete(t *testing.T) {
	content, err := os.ReadFile("testdata/architecture-barcelona.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Load("architecture-barcelona.yaml", content)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, obsolete := range f.Obsolete() {
		got = append(got, fmt.Sprintf("%s: %v: %s", obsolete.Field, obsolete.BadValue, obsolete.Detail))
	}
	want := []string{
		"network.rdma.interfaces: net1,net2,net3,net4: only network attachments create these interfaces, and the file lists none; with SR-IOV " +
			"list network.rdma.attachments and network.rdma.resources, as in clusters/barcelona.yaml; with host devices leave interfaces out",
		"network.rdma.devices: mlx5_2,mlx5_3,mlx5_4,mlx5_5: with SR-IOV leave it out; the names changed with maintenance, and devices are " +
			"detected",
		"security.requires_privileged_scc: true: is for host devices; with SR-IOV want false, and security.scc with a constraint that allows " +
			"IPC_LOCK, as in scc: nccl-scc",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f.Network.RDMA.Attachments = []string{"default/eno5np0-network"}
	if obsolete := f.Obsolete(); len(obsolete) > 0 {
		t.Errorf("with attachments: %v", obsolete)
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
	if s := f.Storage; s.DatasetsClaim != "ml-datasets" || s.WorkspaceClaim != "" || !s.DatasetsSize.Given ||
		Default().Storage.DatasetsSize.Given {
		t.Errorf("storage: %+v; want the claim that exists, and a size that the file has", s)
	}
	if f.Resources.Limits.Memory.Value() != 256<<30 || f.Resources.Requests.CPU.Value() != 32 || !f.Security.IPCLock ||
		f.Network.RDMA.CrossNIC != "1" {
		t.Errorf("values did not arrive: %+v", f)
	}
}

func TestDefaults(t *testing.T) {
	f, err := Load("x.yaml", []byte("cluster: {name: x, api: api.x.example.com, namespace: n}\nstorage: {class_rwo: block}\nnodes:\n  "+
		"gpu_nodes: null\n"))
	if err != nil {
		t.Fatal(err)
	}
	if f.GPUs.PerNode != 4 || f.Storage.Mode != AutoStorage || f.Nodes.GPUNodes != nil || f.Security.ServiceAccount != "ml-dev-sa" {
		t.Errorf("defaults: %+v", f)
	}
}

// everyKey has the keys that no shipped file has.
const everyKey = `cluster: {name: x, api: api.x.example.com, namespace: n}
image: {name: "registry.example.com/team/training:1.2", pull_secret: registry}
monitoring: {pod_monitor: true, labels: {release: kube-prometheus-stack}}
nodes:
  tolerations:
  - {key: nairr, operator: Equal, value: "yes", effect: NoExecute}
  - {operator: Exists}
storage: {mode: auto, class_rwo: block}
network:
  proxy: {http: "http://proxy:3128", https: "http://proxy:3128", no_proxy: "10.0.0.0/8,.example.com"}
  trusted_ca: company-ca
  rdma:
    attachments: [default/a, default/b]
    resources: {openshift.io/a: 1, openshift.io/b: 2}
    expected_bandwidth: 194.6GB/s
    expected: {one_gpu: 14.6GB/s, inside: 261GB/s, pair: 50GB/s, host_copy: 28.7GB/s, host_rdma: 28.3GB/s}
`

func TestEveryKey(t *testing.T) {
	got, err := Load("x.yaml", []byte(everyKey))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Cluster = Cluster{Name: "x", API: "api.x.example.com", Namespace: "n"}
	want.Image = Image{Name: "registry.example.com/team/training:1.2", PullSecret: "registry"}
	want.Monitoring = Monitoring{PodMonitor: true, Labels: map[string]string{"release": "kube-prometheus-stack"}}
	want.Nodes.Tolerations = []Toleration{{Key: "nairr", Operator: "Equal", Value: "yes", Effect: "NoExecute"}, {Operator: "Exists"}}
	want.Storage.Mode, want.Storage.ClassRWO = AutoStorage, "block"
	want.Network.Proxy = Proxy{HTTP: "http://proxy:3128", HTTPS: "http://proxy:3128", NoProxy: List{"10.0.0.0/8", ".example.com"}}
	want.Network.TrustedCA = "company-ca"
	rdma := &want.Network.RDMA
	rdma.Attachments, rdma.Resources = []string{"default/a", "default/b"}, ResourceCounts{"openshift.io/a": 1, "openshift.io/b": 2}
	rdma.ExpectedBandwidth = 194_600_000_000
	rdma.Expected = Figures{OneGPU: 14_600_000_000, Inside: 261_000_000_000, Pair: 50_000_000_000, HostCopy: 28_700_000_000,
		HostRDMA: 28_300_000_000}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := got.Network.RDMA.ExpectedBandwidth.String(); got != "194.6GB/s" {
		t.Errorf("expected_bandwidth is shown as %s", got)
	}
}

func TestValuesThatCannotBe(t *testing.T) {
	for content, want := range map[string]string{
		"image: {name: 'Training:latest'}": `1:15: image.name: "Training:latest": want ` +
			`an image`,
		"image: {name: ''}\nimage: {}": `2:1: image: the key stands in line 1 already`,
		"image: {pull_secret: My_Secret}": `image.pull_secret: "My_Secret": a lowercase ` +
			`RFC 1123 subdomain`,
		"image: {base_pull_secret: My_Secret}": `image.base_pull_secret: "My_Secret": a ` +
			`lowercase RFC 1123 subdomain`,
		"security: {service_account: ml-dev-sa, capabilities: [CAP_SYS_PTRACE]}": `security.capabilities[0]: "CAP_SYS_PTRACE": a ` +
			`capability's name in capitals and without CAP_`,
		"security: {service_account: ''}": `security.service_account: is missing`,
		"notify: {secret: https://hooks.example.com}": `notify.secret: "https://hooks.example.com": a ` +
			`lowercase RFC 1123 subdomain`,
		"monitoring: {pod_monitor: true, labels: {a b: x}}": `monitoring.labels[a b]: "a b": name part must ` +
			`consist of`,
		"monitoring: {pod_monitor: true, labels: {a: x y}}": `monitoring.labels[a]: "x y": a valid label ` +
			`must be`,
		"monitoring: {labels: {a: b}}": `monitoring.pod_monitor: is missing; labels are ` +
			`those of PodMonitors`,
		"monitoring: {pod_monitors: true}": `unknown key; did you mean "pod_monitor"`,
		"storage: {mode: auto}":            `storage.class_rwo: is missing; want storage.class_rwx, or`,
		"storage: {mode: shared}":          `want one of rwx, volumeClaimTemplates, auto`,
		"nodes: {tolerations: [{key: a, operator: Like}]}": `nodes.tolerations[0].operator: "Like": want ` +
			`one of Exists, Equal`,
		"nodes: {tolerations: [{key: a, operator: Exists, value: b}]}": `nodes.tolerations[0].value: "b": operator ` +
			`Exists takes any value`,
		"nodes: {tolerations: [{value: b}]}": `nodes.tolerations[0].key: is missing; operator ` +
			`Equal needs a key`,
		"nodes: {tolerations: [{key: a, effect: Never}]}": `want one of NoSchedule, PreferNoSchedule, ` +
			`NoExecute`,
		"nodes: {tolerations: [{key: a, value: true}]}": `"true": want text; put it in quotes`,
		"nodes: {tolerations: [{name: a}]}": `nodes.tolerations[0].name: unknown key; want ` +
			`one of key, operator`,
		"network: {proxy: {http: 'proxy:3128'}}": `network.proxy.http: "proxy:3128": want the ` +
			`proxy's URL`,
		"network: {proxy: {https: 'http://me:secret@proxy:3128'}}": `network.proxy.https: holds a password or user`,
		"network: {proxy: {no_proxy: example.com}}":                `neither http nor https names one`,
		"network: {trusted_ca: Company CA}":                        `network.trusted_ca: "Company CA": a lowercase`,
		"network: {rdma: {attachments: [eno5np0_network]}}": `network.rdma.attachments[0]: ` +
			`"eno5np0_network": want namespace/name`,
		"network: {rdma: {attachments: [a/b, a/b]}}": `network.rdma.attachments[1]: "a/b": is listed ` +
			`already`,
		"network: {rdma: {attachments: [a/b], interfaces: 'net1,net2'}}": `"net1,net2": are 2, but each of the 1 ` +
			`attachments creates one`,
		"network: {rdma: {resources: [openshift.io/a]}}": `network.rdma.resources: want keys and values, ` +
			`not a list`,
		"network: {rdma: {resources: {openshift.io/a: 0}}}": `network.rdma.resources[openshift.io/a]: "0": ` +
			`want at least 1`,
		"network: {rdma: {resources: {openshift.io/a: '1'}}}": `want a whole number without quotes`,
		"network: {rdma: {resources: {eno5np0rdma: 1}}}": `"eno5np0rdma": want a resource as a device ` +
			`plugin names it`,
		"network: {rdma: {resources: {nvidia.com/gpu: 1}}}": `gpus.per_node sets the number of GPUs: leave ` +
			`this resource out`,
		"network:\n  rdma:\n    resources:\n      openshift.io/a: 1\n      openshift.io/a: 2": `:5:7: network.rdma.resources[openshift.io/a]: ` +
			`the key stands in line 4 already`,
		"network: {rdma: {expected_bandwidth: 200}}": `network.rdma.expected_bandwidth: "200": has no ` +
			`unit; want GB/s`,
		"network: {rdma: {expected: {pair: 14.6}}}": `network.rdma.expected.pair: "14.6": has no unit; ` +
			`want GB/s`,
		"network: {rdma: {expected_bandwidth: 83.33GiB/s}}": `is in 2^30 bytes per second; want GB/s (10^9 bytes ` +
			`per second), as in "200GB/s": this is 89.47GB/s`,
		"network: {rdma: {expected_bandwidth: 1600Gb/s}}": `is in bits per second; want GB/s (10^9 bytes per ` +
			`second), as in "200GB/s": this is 200GB/s`,
		"network: {rdma: {host_network: true, resources: {openshift.io/eno5np0rdma: 1}}}": `network.rdma.host_network`,
		"network: {rdma: {traffic_class: '256'}}":                                         `network.rdma.traffic_class`,
		"network: {rdma: {expected_bandwidth: 200GB}}":                                    `"GB" is no unit for it`,
		"network: {rdma: {expected_bandwidth: -1GB/s}}":                                   `not a bandwidth`,
		"network: {rdma: {expected_bandwidth: 200000000000GB/s}}":                         `more than any node has`,
	} {
		_, err := Load("f.yaml", []byte(content))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q) = %v, want %q", content, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret@") {
			t.Errorf("a password is shown: %v", err)
		}
	}
}

// Names of claims are for mode rwx, and for two claims; caches have two places.
func TestStorageThatCannotBe(t *testing.T) {
	for content, want := range map[string]string{
		"{datasets_claim: a, class_rwo: b, mode: volumeClaimTemplates}":    `datasets_claim: "a": names one claim for all nodes`,
		"{mode: rwx, class_rwx: nfs, workspace_claim: A}":                  `storage.workspace_claim: "A": a lowercase RFC 1123 subdomain`,
		"{mode: rwx, class_rwx: n, workspace_claim: a, datasets_claim: a}": `storage.datasets_claim: "a": is storage.workspace_claim too`,
		"{class_rwo: block, caches: shared}":                               `storage.caches: "shared": want one of claim, node`,
	} {
		if _, err := Load("f.yaml", []byte("storage: "+content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q) = %v, want %q", content, err, want)
		}
	}
}

// mistakes is a cluster file with many mistakes.
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
	want, err := schemaOfFile()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(clustersDir, "schema.json")
	golden.File(t, path, string(want))
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(mistakes))
	f.Add([]byte(everyKey))
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

// TestAttachmentsIn: an attachment without a namespace is the environment's own.
func TestAttachmentsIn(t *testing.T) {
	got := RDMA{Attachments: []string{"eno5np0-network", "default/eno6np0-network"}}.AttachmentsIn("team")
	if want := []string{"team/eno5np0-network", "default/eno6np0-network"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
