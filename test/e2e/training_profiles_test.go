// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/cli"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// shipped describes a cluster file of the repository, and the expected results on the local cluster with the profile of
// the same name.
type shipped struct {
	name string
	// admin are the arguments of mlenv admin for preparing the namespace. Without arguments, the test does not prepare
	// it.
	admin []string
	// mode is the mode that auto chooses, and why is a part of the reason.
	mode, why string
	// nightly marks files that only the nightly run tests.
	nightly bool
	// claim is the datasets claim that the file names, "" for none: it exists there.
	claim string
}

// shippedFiles returns the cluster files that can train here unmodified. Profile h-kim is Barcelona with other device
// names.
func shippedFiles() []shipped {
	return []shipped{
		{name: "barcelona", nightly: true, mode: "tcp", why: "8 MiB"},
		{name: "h-kim", nightly: true, mode: "rdma", admin: []string{
			"admin", clusterFileNamed("barcelona"), "--namespace=b-efficient-memory-offloading-765cab", "--pod-account=h-kim-sa",
			"--scc=nccl-scc", "--attachments=copy",
		}},
		{name: "cairo", mode: "rdma", admin: []string{"admin", clusterFileNamed("cairo")}, claim: "ml-datasets"},
		{name: "nerc-production", nightly: true, mode: "tcp", why: "network.rdma.enabled"},
	}
}

func clusterFileNamed(name string) string { return filepath.Join("..", "..", "clusters", name+".yaml") }

// testShippedFiles tests each cluster file of the repository, unmodified, on a cluster like the one that it describes:
// it validates and plans, mlenv init writes an equivalent file that renders the same objects, and a run without the
// param cluster trains.
func (s training) testShippedFiles(t *testing.T, times *durations) {
	if os.Getenv(keepVariable) != "" {
		t.Cleanup(func() { localcluster(t, "up", "--profile=none") })
	}
	for _, file := range shippedFiles() {
		if file.nightly != (os.Getenv(setVariable) == firstNightly) {
			continue
		}
		t.Run(file.name, func(t *testing.T) {
			times.note(t)
			localcluster(t, "up", "--profile="+file.name)
			s.testShippedFile(t, file)
		})
	}
	// No file of the repository is of such a cluster.
	if os.Getenv(setVariable) == firstNightly {
		t.Run("rdma-shared", func(t *testing.T) {
			times.note(t)
			localcluster(t, "up", "--profile=shared-devices")
			s.run(t, rdmaShared)
		})
	}
}

func (s training) testShippedFile(t *testing.T, want shipped) {
	path := clusterFileNamed(want.name)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := cluster.Load(path, content)
	if err != nil {
		t.Fatal(err)
	}
	// The test of the previous profile may still be deleting its namespace.
	if out, err := run(t, nil, stateDir+"/bin/kubectl", "wait", "--for=delete", "namespace/"+file.Cluster.Namespace,
		within(timeForTheObjectToChange)); err != nil && !strings.Contains(out, "NotFound") {
		t.Fatalf("waiting for the namespace's end: %v: %s", err, out)
	}
	u := trainer{user: newUserIn(t, file.Cluster.Namespace), training: s}
	u.takeSteps()
	mlenv := func(args ...string) string {
		u.Helper()
		var out, problems bytes.Buffer
		if code := cli.Main(args, &out, &problems); code != 0 {
			u.Fatalf("mlenv %s: exit code %d:\n%s%s", strings.Join(args, " "), code, out.String(), problems.String())
		}
		return out.String()
	}
	u.Setenv("KUBECONFIG", kubeconfig)
	mlenv("validate", path)
	mlenv("install", path, "--steps-image="+u.steps)
	u.suspendReaper(true)
	if want.admin != nil {
		u.applyText(mlenv(want.admin...))
	}
	u.mustContain(mlenv("preflight", "--cluster-file="+path, "--image="+trainingImage, "--steps-image="+u.steps), file.Cluster.Namespace+"/")

	if want.claim != "" {
		claim := strings.Replace(fmt.Sprintf(claimText, want.claim, file.Storage.ClassRWX), "1Gi", file.Storage.DatasetsSize.String(), 1)
		u.applyText(claim)
		u.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "persistentvolumeclaim/"+want.claim, within(timeForTheObjectToChange))
	}
	found := filepath.Join(t.TempDir(), want.name+".yaml")
	mlenv("init", want.name, "--namespace="+file.Cluster.Namespace, "--pod-account="+file.Security.ServiceAccount, "--to="+found)
	// What it cannot know is how large claims that do not exist should be.
	text, err := os.ReadFile(found)
	if err != nil {
		t.Fatal(err)
	}
	sized := strings.NewReplacer("workspace_size: 20Gi", "workspace_size: "+file.Storage.WorkspaceSize.String(),
		"datasets_size: 10Gi", "datasets_size: "+file.Storage.DatasetsSize.String()).Replace(string(text))
	if err := os.WriteFile(found, []byte(sized), 0o600); err != nil {
		t.Fatal(err)
	}
	objects := func(path string) string {
		return mlenv("preflight", "--output=yaml", "--cluster-file="+path, "--image="+trainingImage, "--steps-image="+u.steps)
	}
	u.equal("objects by the file of mlenv init", objects(found), objects(path))
	u.equal("what matters in the file of mlenv init", mattering(t, found), mattering(t, path))

	e := u.end(u.startTkn("pipeline", "train-multi-node", "--param=repo-url="+s.repo, "--param=ranks-per-node=1",
		"--param=script=transformer/train.py",
		"--param=deepspeed-config=transformer/ds_zero2.json", "--param=script-args=--steps=4,--global-batch=8,--checkpoint-dir=",
		"--param=image="+trainingImage)).succeeded()
	u.equal("mode", e.receipt.Mode, want.mode)
	u.mustContain(e.receipt.ModeReason, want.why)
	u.nothingLeft()
}

// mattering returns a cluster file with its defaults, without the fields that do not affect a training: texts for
// people, and expectations about what mlenv detects.
func mattering(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := cluster.Load(path, content)
	if err != nil {
		t.Fatal(err)
	}
	f.Cluster.Description, f.Notes = "", ""
	// Two patterns are equal if they yield the same racks.
	if f.Nodes.RackPattern != "" {
		slices.Sort(f.Nodes.GPUNodes)
		racks := network.Racks(t.Context(), nil, cluster.Nodes{RackPattern: f.Nodes.RackPattern}, kueue.Queue{}, f.Nodes.GPUNodes)
		f.Nodes.RackPattern = strings.Join(racks, ",")
	}
	if f.Storage.Mode == cluster.NodeStorage {
		f.Storage.ClassRWX = "" // the shipped file names a class that the cluster does not have
	}
	rdma := &f.Network.RDMA
	rdma.Devices, rdma.Interfaces, rdma.GIDIndex, rdma.GDRLevel = nil, nil, "", ""
	rdma.MTU, rdma.ExpectedBandwidth, rdma.Expected, f.Network.TCP.ExpectedBandwidth = 0, 0, cluster.Figures{}, 0
	if !rdma.Plugged() {
		// Host devices have no subnets that init could read. Routes decide: rails without any between them override it.
		rdma.CrossNIC = ""
	}
	if !rdma.Enabled {
		*rdma = cluster.RDMA{}
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
