// Package install gives a namespace of a cluster what training there needs: the
// Tasks and Pipelines with the cluster's defaults filled in, the cluster file,
// and a ServiceAccount with the rights of the steps.
package install

import (
	"fmt"
	"io/fs"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// Names that the Tasks know.
const (
	clusterKey = "cluster.yaml"
)

// DefaultServiceAccount is whose rights the steps use where nobody names another.
const DefaultServiceAccount = "mlenv-pipeline"

// Request is what is to be installed where.
type Request struct {
	Cluster cluster.File
	// ClusterFile is the text of the file, which is installed as it is.
	ClusterFile []byte
	Namespace   string
	// StepsImage by digest.
	StepsImage string
	// ServiceAccount is the one that runs use.
	ServiceAccount string
	// ClusterRole lets the steps read nodes, storage classes, and what lies in other namespaces.
	ClusterRole bool
}

// Render makes the objects, in the order in which to apply them. files is the
// bundle: tasks/NAME/NAME.yaml and pipelines/NAME/NAME.yaml.
func Render(request Request, files fs.FS) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, typed := range request.typed() {
		object, err := Untyped(typed)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
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
		mark(object)
		objects = append(objects, object)
	}
	return objects, nil
}

// Untyped is an object as Apply takes it.
func Untyped(typed runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return nil, fmt.Errorf("rendering %T: %w", typed, err)
	}
	unstructured.RemoveNestedField(fields, "status") // is the cluster's to say
	return &unstructured.Unstructured{Object: fields}, nil
}

// mark adds the labels of what is installed.
func mark(object *unstructured.Unstructured) {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, Labels(NamespacePart))
	object.SetLabels(labels)
}

// defaults show people what they get, in tkn pipeline describe too. A param that
// is left empty by the bundle means the cluster file's value, so what the file
// does not say stays empty.
func (r Request) defaults() []bundle.Default {
	return []bundle.Default{
		{Param: "cluster", Value: r.Cluster.Cluster.Name},
		{Param: "steps-image", Value: r.StepsImage},
		{Param: "image", Value: r.Cluster.Image.Name},
		{Param: "flavour", Value: r.Cluster.Image.Flavour},
		{Param: "pull-secret", Value: r.Cluster.Image.PullSecret, Replaces: "none"},
		// A development environment has one node whatever the cluster's default is.
		{Param: "nodes", Value: strconv.Itoa(r.Cluster.GPUs.DefaultNodes), Replaces: "0"},
		{Param: "gpus-per-node", Value: strconv.Itoa(r.Cluster.GPUs.PerNode), Replaces: "0"},
	}
}

// typed are the objects beside the bundle's.
func (r Request) typed() []runtime.Object {
	objects := []runtime.Object{
		&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: r.meta(cluster.ConfigMapPrefix + r.Cluster.Cluster.Name),
			Data:       map[string]string{clusterKey: string(r.ClusterFile)},
		},
		// OpenShift fills it; its key is therefore never applied.
		&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: r.meta(cluster.TrustedCA, "config.openshift.io/inject-trusted-cabundle", "true"),
		},
		r.serviceAccount(), r.role(), r.roleBinding(),
	}
	objects = append(objects, r.reaper()...)
	if r.ClusterRole {
		objects = append(objects, clusterRole(), r.clusterRoleBinding())
	}
	return objects
}

// PartLabel marks what was installed, with the part that it is of. Installing a part
// again deletes what is marked with it and is not among its objects any more.
const PartLabel = "ml-dev-env/part"

// The parts.
const (
	// NamespacePart is what whoever administrates a namespace can install.
	NamespacePart = "namespace"
	// AdminPart wants a cluster administrator.
	AdminPart = "admin"
)

// Labels are on every installed object of a part. Those of a Task reach its pods, so
// an environment's own labels must not be among them.
func Labels(part string) map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": "ml-dev-env", PartLabel: part}
}

// meta is the metadata of an object of the namespace, with pairs of further labels.
func (r Request) meta(name string, labels ...string) metav1.ObjectMeta {
	all := Labels(NamespacePart)
	for i := 0; i+1 < len(labels); i += 2 {
		all[labels[i]] = labels[i+1]
	}
	return metav1.ObjectMeta{Name: name, Namespace: r.Namespace, Labels: all}
}

// serviceAccount is made where there is none. One that is not ours by its name, as
// that of OpenShift Pipelines, is not marked as ours either: nothing may delete it.
func (r Request) serviceAccount() *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: r.meta(r.ServiceAccount),
	}
	if r.ServiceAccount != DefaultServiceAccount {
		account.Labels = nil
	}
	return account
}
