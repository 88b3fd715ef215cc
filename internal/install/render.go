// SPDX-License-Identifier: Apache-2.0

// Package install installs into a namespace what training needs: Tasks and Pipelines with the cluster's defaults, the
// cluster file, a ServiceAccount with the rights of the steps, and the nodes', so that no environment waits for its pull secrets.
package install

import (
	"cmp"
	"fmt"
	"io/fs"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// Request describes an installation.
type Request struct {
	Cluster cluster.File
	// ClusterFile is the text of the cluster file.
	ClusterFile []byte
	Namespace   string
	// StepsImage by digest.
	StepsImage     string
	ServiceAccount string
	// Beside are the other cluster files that are installed in the namespace: all share one Role and one Pipeline.
	Beside []cluster.File
	// ClusterRole lets the steps read nodes, storage classes, and objects of other namespaces.
	ClusterRole bool
}

// Render renders the objects in the order in which to apply them. files has tasks/NAME/NAME.yaml and
// pipelines/NAME/NAME.yaml.
func Render(request Request, files fs.FS) ([]*unstructured.Unstructured, error) {
	objects, err := Untyped(request.typed())
	if err != nil {
		return nil, err
	}
	fromBundle, err := bundle.Objects(files)
	if err != nil {
		return nil, err
	}
	for _, object := range fromBundle {
		if err := bundle.SetDefaults(object, request.defaults()); err != nil {
			return nil, err
		}
		object.SetNamespace(request.Namespace)
		if object.GetName() == launch.Pipeline && request.ServiceAccount != launch.ServiceAccount {
			annotations := object.GetAnnotations()
			annotations[launch.AccountAnnotation] = request.ServiceAccount
			object.SetAnnotations(annotations)
		}
		for key, value := range Labels(NamespacePart) {
			if err := unstructured.SetNestedField(object.Object, value, "metadata", "labels", key); err != nil {
				return nil, fmt.Errorf("labelling %s: %w", ObjectName(object), err)
			}
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// Untyped converts objects for Apply.
func Untyped(typed []runtime.Object) (objects []*unstructured.Unstructured, err error) {
	for _, each := range typed {
		fields, err := kube.Fields(each)
		if err != nil {
			return nil, fmt.Errorf("rendering %T: %w", each, err)
		}
		objects = append(objects, &unstructured.Unstructured{Object: fields})
	}
	return objects, nil
}

// defaults are few: the steps read all other defaults from the cluster file that the run's param cluster names, which can be
// another installed one. The exceptions are Secrets, because only the name of a param can be mounted, and the time to save, because the
// timeouts of a PipelineRun must include it: the longest of all files.
func (r Request) defaults() map[string]string {
	var stopGrace time.Duration
	for _, file := range r.clusterFiles() {
		stopGrace = max(stopGrace, time.Duration(cmp.Or(file.Nodes.StopGrace, cluster.Duration(agent.DefaultStopGrace))))
	}
	return map[string]string{
		"cluster": r.Cluster.Cluster.Name, "steps-image": r.StepsImage, "pull-secret": r.pullSecret(),
		"notify":     cmp.Or(r.Cluster.Notify.Secret, "none"),
		"stop-grace": cluster.Duration(stopGrace).String(),
	}
}

func (r Request) clusterFiles() []cluster.File { return append([]cluster.File{r.Cluster}, r.Beside...) }

// pullSecret returns the Secret with which steps read from the image's registry, or from the base's if the image is built.
func (r Request) pullSecret() string {
	secret := r.Cluster.Image.PullSecret
	if r.Cluster.Image.Name == "" {
		secret = cmp.Or(r.Cluster.Image.BasePullSecret, secret)
	}
	if secret == "" || secret == "-" {
		return "none"
	}
	return secret
}

func (r Request) typed() []runtime.Object {
	// OpenShift fills in the key, so it is never applied.
	trusted := &corev1.ConfigMap{ObjectMeta: r.objectMeta(cluster.TrustedCA)}
	trusted.Labels["config.openshift.io/inject-trusted-cabundle"] = "true"
	objects := []runtime.Object{
		&corev1.ConfigMap{
			ObjectMeta: r.objectMeta(cluster.ConfigMapPrefix + r.Cluster.Cluster.Name),
			Data:       map[string]string{"cluster.yaml": string(r.ClusterFile)},
		},
		trusted, r.serviceAccount(), r.role(), r.roleBinding(),
	}
	if name := r.Cluster.Security.ServiceAccount; name != "" && name != r.ServiceAccount {
		objects = append(objects, &corev1.ServiceAccount{ObjectMeta: r.objectMeta(name)})
	}
	objects = append(objects, r.reaper()...)
	if r.ClusterRole {
		objects = append(objects, clusterRole(), r.clusterRoleBinding())
	}
	return objects
}

// PartLabel marks installed objects with their part. Installing a part again deletes its objects that are obsolete.
const PartLabel = project.LabelPrefix + "part"

const (
	// NamespacePart is what an administrator of the namespace can install.
	NamespacePart = "namespace"
	// AdminPart needs a cluster administrator.
	AdminPart = "admin"
)

// Labels returns the labels of a part's objects. Pods inherit their Task's labels, so these must not include an environment's.
func Labels(part string) map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": "ml-dev-env", PartLabel: part}
}

func (r Request) objectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: r.Namespace, Labels: Labels(NamespacePart)}
}

// serviceAccount returns the account, which is created if it is missing. An account with another name, such as OpenShift
// Pipelines' own, gets no labels, so that nothing deletes it.
func (r Request) serviceAccount() *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{ObjectMeta: r.objectMeta(r.ServiceAccount)}
	if r.ServiceAccount != launch.ServiceAccount {
		account.Labels = nil
	}
	return account
}
