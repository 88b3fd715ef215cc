package release

import (
	"bytes"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

const (
	namespace = "ml-dev-env"
	// clusterName is the cluster of install.yaml's Tasks: users create the ConfigMap with its cluster file.
	clusterName = "default"
)

// writeInstall writes the objects of mlenv install except the cluster file.
func (r *Release) writeInstall() error {
	request := install.Request{Namespace: namespace, ServiceAccount: install.DefaultServiceAccount, StepsImage: r.StepsImage.Name()}
	request.Cluster.Cluster.Name = clusterName
	rendered, err := install.Render(request, os.DirFS(r.request.Source.Dir))
	if err != nil {
		return err
	}
	objects := []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace},
	}}}
	for _, object := range rendered {
		if object.GetKind() != "ConfigMap" || object.GetName() != cluster.ConfigMapPrefix+clusterName {
			objects = append(objects, object)
		}
	}
	var out bytes.Buffer
	if err := step.WriteObjects(&out, objects); err != nil {
		return err
	}
	return r.write(installFile, out.Bytes())
}
