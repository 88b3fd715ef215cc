package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

// fakeCluster keeps objects and answers reviews. Its apply replaces the fields that are sent, and assigns a new resource
// version if one of them differs. It merges no lists, checks no schema and runs no controller.
type fakeCluster struct {
	*kube.Clients
	t       *testing.T
	dynamic *dynamicfake.FakeDynamicClient
	version int
	// refused lists "verb resource"; refusedApply lists kinds that admission refuses.
	refused, refusedApply []string
	// refuseReal accepts the kind in a dry run, and refuses it afterwards.
	refuseReal string
	applied    []string
}

func newCluster(t *testing.T, objects ...*unstructured.Unstructured) *fakeCluster {
	t.Helper()
	c := &fakeCluster{t: t, dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		poolResource(): "MachineConfigPoolList", attachment.Resource(): "NetworkAttachmentDefinitionList",
	})}
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		asked := review.Spec.ResourceAttributes
		review.Status.Allowed = true
		for _, refused := range c.refused {
			if refused == asked.Verb+" "+asked.Resource {
				review.Status.Allowed = false
			}
		}
		return true, review, nil
	})
	client.PrependReactor("create", "localsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.LocalSubjectAccessReview)
		spec := review.Spec
		review.Status.Allowed = c.bound(spec.User, spec.ResourceAttributes.Name, spec.ResourceAttributes.Namespace)
		return true, review, nil
	})
	c.Clients = &kube.Clients{Kube: client, Objects: withOptions{c.dynamic}}
	c.dynamic.PrependReactor("patch", "*", c.apply)
	for _, object := range objects {
		c.put(object)
	}
	return c
}

// bound returns what the API server's authorizer derives from the bindings.
func (c *fakeCluster) bound(user, scc, namespace string) bool {
	where := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}
	object, err := c.dynamic.Tracker().Get(where, namespace, "system:openshift:scc:"+scc)
	if err != nil {
		return false
	}
	for _, subject := range subjectsOf(object.(*unstructured.Unstructured)) {
		fields := subject.(map[string]any)
		if user == fmt.Sprintf("system:serviceaccount:%s:%s", fields["namespace"], fields["name"]) {
			return true
		}
	}
	return false
}

func resourceOf(object *unstructured.Unstructured) schema.GroupVersionResource {
	if object.GetKind() == "MachineConfigPool" {
		return poolResource()
	}
	return install.Resource(object)
}

func (c *fakeCluster) put(object *unstructured.Unstructured) {
	c.t.Helper()
	object = object.DeepCopy()
	c.version++
	object.SetResourceVersion(fmt.Sprint(c.version))
	where := resourceOf(object)
	tracker := c.dynamic.Tracker()
	if _, err := tracker.Get(where, object.GetNamespace(), object.GetName()); err == nil {
		if err := tracker.Update(where, object, object.GetNamespace()); err != nil {
			c.t.Fatal(err)
		}
	} else if err := tracker.Create(where, object, object.GetNamespace()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *fakeCluster) get(kind, apiVersion, namespace, name string) *unstructured.Unstructured {
	c.t.Helper()
	named := &unstructured.Unstructured{}
	named.SetAPIVersion(apiVersion)
	named.SetKind(kind)
	object, err := c.dynamic.Tracker().Get(resourceOf(named), namespace, name)
	if err != nil {
		c.t.Fatal(err)
	}
	return object.(*unstructured.Unstructured)
}

// withOptions passes the options of a patch on to the fake's reactors. client-go 0.34's dynamic fake drops them.
type withOptions struct {
	*dynamicfake.FakeDynamicClient
}

func (w withOptions) Resource(resource schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return patchedWithOptions{w.FakeDynamicClient.Resource(resource), w.FakeDynamicClient, resource, ""}
}

type patchedWithOptions struct {
	dynamic.NamespaceableResourceInterface
	fake      *dynamicfake.FakeDynamicClient
	resource  schema.GroupVersionResource
	namespace string
}

func (p patchedWithOptions) Namespace(namespace string) dynamic.ResourceInterface {
	p.namespace = namespace
	return namespacedWithOptions{p.NamespaceableResourceInterface.Namespace(namespace), p}
}

func (p patchedWithOptions) Patch(_ context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	action := clienttesting.NewPatchAction(p.resource, p.namespace, name, kind, data)
	action.PatchOptions = options
	patched, err := p.fake.Invokes(action, &unstructured.Unstructured{})
	if err != nil {
		return nil, err
	}
	return patched.(*unstructured.Unstructured), nil
}

type namespacedWithOptions struct {
	dynamic.ResourceInterface
	of patchedWithOptions
}

func (n namespacedWithOptions) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	return n.of.Patch(ctx, name, kind, data, options)
}

func (c *fakeCluster) apply(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchActionImpl)
	if patch.GetPatchType() != types.ApplyPatchType || patch.PatchOptions.Force == nil || !*patch.PatchOptions.Force {
		return true, nil, fmt.Errorf("%s of %s is no forced apply", patch.GetPatchType(), patch.GetName())
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(patch.GetPatch(), &object.Object); err != nil {
		return true, nil, err
	}
	dryRun := len(patch.PatchOptions.DryRun) > 0
	for _, kind := range c.refusedApply {
		if kind == object.GetKind() {
			return true, nil, apierrors.NewForbidden(patch.GetResource().GroupResource(), object.GetName(), fmt.Errorf("attempting to grant RBAC permissions not currently held"))
		}
	}
	if !dryRun && c.refuseReal == object.GetKind() {
		return true, nil, apierrors.NewInternalError(fmt.Errorf("etcd is away"))
	}
	live, err := c.dynamic.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
	if err == nil && difference(live.(*unstructured.Unstructured).Object, object.Object, "") == "" {
		return true, live, nil
	}
	if dryRun {
		return true, object, nil
	}
	c.applied = append(c.applied, object.GetKind())
	c.put(object)
	live, err = c.dynamic.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
	return true, live, err
}

// nics returns Barcelona's attachments, with these third octets in their ranges.
func nics(octets ...int) []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	for i, octet := range octets {
		name := fmt.Sprintf("eno%dnp0", 5+i)
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"spec": map[string]any{"config": fmt.Sprintf(
				`{"cniVersion":"1.0.0","name":"%s-network","type":"sriov","vlan":0,"spoofchk":"off","trust":"on","link_state":"enable","mtu":9000,"ipam":{"type":"whereabouts","range":"10.0.%d.0/24"}}`, name, octet)},
		}}
		object.SetNamespace("default")
		object.SetName(name + "-network")
		object.SetUID(types.UID("uid-" + name))
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "sriovnetwork.openshift.io/v1", Kind: "SriovNetwork", Name: name, UID: "owner"}})
		object.SetAnnotations(map[string]string{
			attachment.ResourceAnnotation: "openshift.io/" + name + "rdma", "sriovnetwork.openshift.io/owner-ref": "SriovNetwork/" + name,
		})
		objects = append(objects, object)
	}
	return objects
}

// constraint returns a constraint that another administrator created.
func constraint(name string, capabilities ...string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints", "metadata": map[string]any{"name": name},
		"allowPrivilegedContainer": name == "privileged", "runAsUser": map[string]any{"type": "RunAsAny"},
	}}
	if err := unstructured.SetNestedStringSlice(object.Object, capabilities, "allowedCapabilities"); err != nil {
		panic(err) // the path is a map
	}
	return object
}

// workers returns the pool worker, with the configurations that its nodes have and those that they must get.
func workers(current, target []string, updated int64, conditions ...string) *unstructured.Unstructured {
	configuration := func(names []string) map[string]any {
		var sources []any
		for _, name := range names {
			sources = append(sources, map[string]any{"name": name})
		}
		return map[string]any{"name": rendered(names), "source": sources}
	}
	var list []any
	for _, condition := range conditions {
		name, message, _ := strings.Cut(condition, ": ")
		list = append(list, map[string]any{"type": name, "status": "True", "message": message})
	}
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
		"spec": map[string]any{
			"configuration": configuration(target),
			"nodeSelector":  map[string]any{"matchLabels": map[string]any{"node-role.kubernetes.io/worker": ""}},
		},
		"status": map[string]any{
			"configuration": configuration(current), "conditions": list,
			"machineCount": int64(3), "updatedMachineCount": updated, "readyMachineCount": updated, "degradedMachineCount": int64(0),
		},
	}}
	pool.SetName("worker")
	pool.SetUID("worker")
	return pool
}

func rendered(names []string) string { return "rendered-worker-" + fmt.Sprint(len(names)) }

func memlockConfig(pool string) *unstructured.Unstructured {
	return Request{Pool: pool}.objects("memlock")[0]
}
func iommuConfig(pool string) *unstructured.Unstructured {
	return Request{Pool: pool}.objects("iommu")[0]
}
