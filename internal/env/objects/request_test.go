// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestValidate(t *testing.T) {
	tests := []struct {
		name    string
		cluster string
		change  func(*Request)
		want    string // "" if the request is valid
	}{
		{"the defaults", "barcelona", func(*Request) {}, ""},
		{"another name", "cairo", func(r *Request) { r.Name = "h-kim" }, ""},
		{"one node with one GPU", "cairo", func(r *Request) { r.Nodes, r.GPUsPerNode = 1, new(1) }, ""},
		{"one node without GPUs", "cairo", func(r *Request) { r.Nodes, r.GPUsPerNode = 1, new(0) }, ""},
		{"more than default_nodes", "barcelona", func(r *Request) { r.Nodes = 5 }, ""},
		{"more than are listed", "barcelona", func(r *Request) { r.Nodes = 6 },
			"nodes: 6: the cluster file of barcelona lists 5 nodes in nodes.gpu_nodes; want 1 to 5"},
		{"excluded nodes", "barcelona", func(r *Request) { r.Nodes, r.ExcludeNodes = 4, []string{"moc-r4pcc02u15-yunshi"} }, ""},
		{"more than are left", "barcelona", func(r *Request) {
			r.Nodes, r.ExcludeNodes = 5, []string{"moc-r4pcc02u15-yunshi", "moc-r4pcc02u15-yunshi"}
		}, "nodes: 5: the cluster file of barcelona lists 5 nodes in nodes.gpu_nodes and exclude-nodes leaves 4; want 1 to 4"},
		{"all nodes excluded", "cairo", func(r *Request) { r.ExcludeNodes = []string{"moc-r4pcc02u15", "moc-r4pcc02u16"} },
			`exclude-nodes: "moc-r4pcc02u15,moc-r4pcc02u16": it leaves none of the nodes in nodes.gpu_nodes of the cluster file of cairo`},
		{"an unknown node excluded", "cairo", func(r *Request) { r.ExcludeNodes = []string{"wrk-97"} },
			`exclude-nodes: "wrk-97": nodes.gpu_nodes in the cluster file of cairo does not list it; want one of moc-r4pcc02u15, moc-r4pcc02u16`},
		{"a priority in the cluster file's queue", "cairo", func(r *Request) { r.Cluster.Nodes.Queue, r.QueuePriority = "team-a", "urgent" }, ""},
		{"a priority without a queue", "cairo", func(r *Request) { r.QueuePriority = "urgent" },
			`queue-priority: "urgent": needs a queue: name one, or set nodes.queue in the cluster file of cairo`},
		{"any node", "nerc-production", func(r *Request) { r.Nodes = 25 }, ""},
		{"too many GPUs", "barcelona", func(r *Request) { r.GPUsPerNode = new(8) },
			"gpus-per-node: 8: a node of barcelona has 4 by gpus.per_node of its cluster file; want 0 to 4"},
		{"no name", "cairo", func(r *Request) { r.Name = "" }, "name: is missing: want lower-case letters"},
		{"no namespace", "cairo", func(r *Request) { r.Namespace = "" }, "namespace: is missing"},
		{"a namespace that is none", "cairo", func(r *Request) { r.Namespace = "a.b" }, `namespace: "a.b": want`},
		{"no mode", "cairo", func(r *Request) { r.Mode = "" }, "mode: is missing: want tcp or rdma"},
		{"a mode that is not decided", "cairo", func(r *Request) { r.Mode = "auto" }, "mode: auto: want tcp or rdma"},
		{"no image", "cairo", func(r *Request) { r.Image, r.Cluster.Image = "", cluster.Image{} },
			"image: is missing: name an image, or set image.name in the cluster file of cairo"},
		{"the cluster file's image", "local", func(r *Request) { r.Image, r.Cluster.Image = "", cluster.Image{Name: "training:1"} }, ""},
		{"an image that is to be built first", "local", func(r *Request) { r.Image = "" },
			"image: is missing: the cluster file of local builds its flavour cpu: name an image, as mlenv build prints it"},
		{"no steps image", "cairo", func(r *Request) { r.StepsImage = "" }, "steps-image: is missing"},
		{"storage that is to be decided", "cairo", func(r *Request) { r.Storage = cluster.AutoStorage }, ""},
		{"shared storage without a class", "cairo", func(r *Request) { r.Cluster.Storage.ClassRWX = "" },
			`storage: "rwx": needs storage.class_rwx in the cluster file of cairo`},
		{"storage of nodes without a class", "barcelona", func(r *Request) { r.Cluster.Storage.ClassRWO = "" },
			`storage: "volumeClaimTemplates": needs storage.class_rwo in the cluster file of barcelona`},
		{"sizes", "cairo", func(r *Request) { r.WorkspaceSize, r.DatasetsSize = "1Ti", "500M" }, ""},
		{"one claim for both folders", "cairo", func(r *Request) { r.Cluster.Storage.DatasetsClaim = "ml-dev-workspace" },
			`storage: "rwx": claim ml-dev-workspace would be both /workspace and /datasets of environment ml-dev-env`},
		{"that claim is another environment's", "cairo", func(r *Request) {
			r.Name, r.Cluster.Storage.DatasetsClaim = "h-kim", "ml-dev-workspace"
		}, ""},
		{"services", "cairo", func(r *Request) { r.Services, r.Routes = ParseServices("tensorboard, jupyter,jupyter"), true }, ""},
		{"a service that there is not", "cairo", func(r *Request) { r.Services = ParseServices("jupyter,emacs") },
			`services: "emacs": want none, all, or names with commas: code-server,jupyter,tensorboard`},
		{"routes to nothing", "cairo", func(r *Request) { r.Services, r.Routes = ParseServices(NoServices), true },
			"routes: true: routes lead to services"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := request(t, test.cluster)
			test.change(&r)
			err := r.WithDefaults().Validate()
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %s", err, test.want)
			case err != nil && fail.ReasonOf(err) != fail.InvalidInput:
				t.Errorf("reason %s, want InvalidInput", fail.ReasonOf(err))
			}
		})
	}
}

func TestEveryMistakeOfARequestAtOnce(t *testing.T) {
	r := Request{
		Cluster: load(t, "barcelona"), Namespace: "B", Nodes: 9, GPUsPerNode: new(9), Mode: "x",
		QueuePriority: "urgent", Services: []string{"emacs"},
	}
	err := r.WithDefaults().Validate()
	if err == nil {
		t.Fatal("want a refusal")
	}
	var params []string
	for line := range strings.Lines(strings.TrimPrefix(err.Error(), "checking the request: ")) {
		param, _, _ := strings.Cut(line, ":")
		params = append(params, param)
	}
	want := []string{"name", "namespace", "mode", "nodes", "gpus-per-node", "queue-priority", "image", "steps-image", "services"}
	if diff := cmp.Diff(want, params); diff != "" {
		t.Errorf("params in %v (-want +got):\n%s", err, diff)
	}
	if next := fail.NextOf(err); next != "use --nodes=5 --gpus-per-node=4; or correct the cluster file, if the nodes have more" {
		t.Errorf("next %q", next)
	}
}

func TestBuildRefusesWhatIsNotDecided(t *testing.T) {
	for want, change := range map[string]func(*Request){
		"storage mode auto: want it decided": func(r *Request) { r.Storage = cluster.AutoStorage },
		"mode: rdma: the cluster file of cairo has network.rdma.enabled false": func(r *Request) {
			r.Mode, r.Cluster.Network.RDMA.Enabled = agent.RDMA, false
		},
		"name: is missing": func(r *Request) { r.Name = "" },
		"image: is missing: the cluster file of cairo builds its flavour ": func(r *Request) { r.Image = "" },
	} {
		r := request(t, "cairo")
		change(&r)
		_, err := Build(r.WithDefaults(), LeaseReference(r.Name, "1"), Certificates{})
		if err == nil || !strings.Contains(err.Error(), want) || fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("Build = %v, want %s", err, want)
		}
	}
}
