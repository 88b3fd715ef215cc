// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

const clustersDir = "../../../clusters"

func load(t *testing.T, name string) cluster.File {
	t.Helper()
	path := filepath.Join(clustersDir, name+".yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := cluster.Load(path, content)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// request returns a request for the default environment of a shipped cluster.
func request(t *testing.T, clusterName string) Request {
	t.Helper()
	file := load(t, clusterName)
	return Request{
		Cluster: file, Name: DefaultName, Namespace: file.Cluster.Namespace, Mode: agent.TCP,
		Image: "registry.example.com/team/training:1", StepsImage: "registry.example.com/ml-dev-env/steps:1",
	}
}

// fakeCertificates returns certificates that are the same in every run.
func fakeCertificates() Certificates {
	return Certificates{
		CA: []byte("the CA"), ServerCert: []byte("the server's certificate"), ServerKey: []byte("the server's key"),
		ClientCert: []byte("the client's certificate"), ClientKey: []byte("the client's key"),
		MetricsCert: []byte("Prometheus' certificate"), MetricsKey: []byte("Prometheus' key"),
	}
}

func build(t *testing.T, r Request) Objects {
	t.Helper()
	objects, err := Build(r.WithDefaults(), LeaseReference(r.Names().Lease, "11111111-2222-3333-4444-555555555555"), fakeCertificates())
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestGolden shows all objects of each cluster file's environment.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(clustersDir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("cluster files: %v, %v", files, err)
	}
	known := map[string]bool{servicesGolden: true, podMonitorGolden: true}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		for _, mode := range []cluster.StorageMode{cluster.SharedStorage, cluster.NodeStorage} {
			path := filepath.Join("testdata", fmt.Sprintf("%s-tcp-%s.yaml", name, mode))
			known[path] = true
			t.Run(filepath.Base(path), func(t *testing.T) {
				r := request(t, name)
				r.Storage = mode
				golden.File(t, path, string(yamlOf(t, build(t, r).InOrder())))
			})
		}
		if !load(t, name).Network.RDMA.Enabled {
			continue
		}
		path := filepath.Join("testdata", name+"-rdma.yaml")
		known[path] = true
		t.Run(filepath.Base(path), func(t *testing.T) {
			r := request(t, name)
			r.Mode = agent.RDMA
			golden.File(t, path, string(yamlOf(t, build(t, r).InOrder())))
		})
	}
	found, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		if !known[file] {
			t.Errorf("%s belongs to no cluster file and mode", file)
		}
	}
}

const servicesGolden = "testdata/services.yaml"

// TestServicesGolden shows what services add to an environment.
func TestServicesGolden(t *testing.T) {
	without := request(t, "local")
	with := without
	with.Services, with.Routes = ParseServices(AllServices), true
	plain, objects := build(t, without), build(t, with)
	if diff := cmp.Diff(plain.StatefulSet, objects.StatefulSet); diff != "" {
		t.Errorf("services change the pods (-without +with):\n%s", diff)
	}
	if got := plain.Services; got.NodeZero != nil || len(got.Routes) > 0 {
		t.Errorf("without services: service %v, routes %v", got.NodeZero, got.Routes)
	}
	golden.File(t, servicesGolden, string(yamlOf(t, objects.Services.All())))
}

// yamlOf returns the objects as mlenv applies them: without status and empty fields.
func yamlOf(t *testing.T, objects []Object) []byte {
	t.Helper()
	var out bytes.Buffer
	for i, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}
		content, err := yaml.Marshal(withoutEmpty(fields))
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(content)
	}
	return out.Bytes()
}

func withoutEmpty(value any) any {
	switch value := value.(type) {
	case map[string]any:
		delete(value, "status")
		for key, inner := range value {
			if inner == nil {
				delete(value, key)
				continue
			}
			withoutEmpty(inner)
		}
	case []any:
		for _, inner := range value {
			withoutEmpty(inner)
		}
	}
	return value
}
