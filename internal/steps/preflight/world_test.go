// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
	"github.com/ml-dev-env/ml-dev-env/test/kueuetest"
)

// stepsUser is the account of the steps, which sends the requests.
const stepsUser = "system:serviceaccount:nccl-test:mlenv-pipeline"

// world is a cluster. The fake API server validates and admits nothing by itself: the reactors below choose a constraint
// as OpenShift's documentation describes it, refuse what is forbidden, and fail the test if a request is not a dry run.
type world struct {
	t      *testing.T
	groups []string
	// objects are typed. others has attachments and similar objects, by resource.
	objects []runtime.Object
	others  map[schema.GroupVersionResource][]*unstructured.Unstructured
	// forbidden lists "verb resource" that the caller may not do.
	forbidden []string
	// uses lists the constraints that an account may use, by user name.
	uses map[string][]string
	// kueue is the version of Kueue that manages StatefulSets with a queue, nil for none.
	kueue *kueuetest.Version
	// noNamespace reports whether the namespace is missing.
	noNamespace bool
	// refuse returns admission's message for a pod that it refuses, "" for any other pod.
	refuse func(*corev1.Pod) string

	mu sync.Mutex
	// asked lists the pods that were created as a dry run.
	asked []*corev1.Pod
}

// examine calls Examine with a request, as changed by change.
func (w *world) examine(file cluster.File, mode agent.Mode, change ...func(*Deps, *Options)) Report {
	d, o := w.deps(file), optionsOf(file, mode)
	for _, c := range change {
		c(&d, &o)
	}
	return Examine(w.t.Context(), d, o)
}

func optionsOf(file cluster.File, mode agent.Mode) Options {
	return Options{Mode: mode, Request: objects.Request{Cluster: file, Name: objects.DefaultName, Namespace: file.Cluster.Namespace}}
}

func (w *world) deps(file cluster.File) Deps {
	client := kubefake.NewClientset(w.objects...)
	for _, group := range w.groups {
		client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: group + "/v1"})
	}
	client.PrependReactor("*", "*", w.forbid)
	client.PrependReactor("create", "pods", w.admit)
	client.PrependReactor("patch", "persistentvolumeclaims", w.patchClaim)
	client.PrependReactor("patch", "persistentvolumeclaims", w.forbid)
	client.PrependReactor("create", "serviceaccounts", w.makeAccount)
	client.PrependReactor("create", "statefulsets", w.makeStatefulSet)
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		review.Status.Allowed = w.allowed(stepsUser, review.Spec.ResourceAttributes)
		return true, review, nil
	})
	client.PrependReactor("create", "localsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if slices.Contains(w.forbidden, "create localsubjectaccessreviews") {
			return false, nil, nil
		}
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.LocalSubjectAccessReview).DeepCopy()
		review.Status.Allowed = w.allowed(review.Spec.User, review.Spec.ResourceAttributes)
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if slices.Contains(w.forbidden, "create subjectaccessreviews") {
			return false, nil, nil
		}
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		review.Status.Allowed = w.allowed(review.Spec.User, review.Spec.ResourceAttributes)
		return true, review, nil
	})
	client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true,
			&authenticationv1.SelfSubjectReview{
				Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: stepsUser}}}, nil
	})
	kinds := map[schema.GroupVersionResource]string{
		attachment.Resource(): "NetworkAttachmentDefinitionList", machineConfigs: "MachineConfigList",
		constraints: "SecurityContextConstraintsList",
	}
	for kind := range w.others {
		if kinds[kind] == "" {
			kinds[kind] = "List"
		}
	}
	others := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	for where, list := range w.others {
		for _, object := range list {
			if _, err := others.Resource(where).Namespace(object.GetNamespace()).Create(w.t.Context(), object, metav1.CreateOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	others.PrependReactor("*", "*", w.forbid)
	return Deps{Clients: &kube.Clients{Kube: client, Tekton: tektonfake.NewSimpleClientset(), Namespace: file.Cluster.Namespace,
		Objects: others}}
}

// forbid answers as RBAC does.
func (w *world) forbid(action clienttesting.Action) (bool, runtime.Object, error) {
	what := action.GetVerb() + " " + action.GetResource().Resource
	elsewhere := action.GetVerb() + " everywhere " + action.GetResource().Resource
	if !slices.Contains(w.forbidden, what) && (action.GetNamespace() != "" || !slices.Contains(w.forbidden, elsewhere)) {
		return false, nil, nil
	}
	where := "at the cluster scope"
	if action.GetNamespace() != "" {
		where = fmt.Sprintf("in the namespace %q", action.GetNamespace())
	}
	return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "",
		fmt.Errorf("User %q cannot %s resource %q in API group %q %s",
			stepsUser, action.GetVerb(), action.GetResource().Resource, action.GetResource().Group, where))
}

func (w *world) allowed(user string, a *authorizationv1.ResourceAttributes) bool {
	if a.Verb == "use" {
		return slices.Contains(w.uses[user], a.Name)
	}
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return !slices.Contains(w.forbidden, a.Verb+" "+resource)
}

func (w *world) makeStatefulSet(action clienttesting.Action) (bool, runtime.Object, error) {
	w.dry(action)
	set := action.(clienttesting.CreateAction).GetObject().(*appsv1.StatefulSet).DeepCopy()
	if w.kueue != nil {
		w.kueue.Admit(set)
	}
	return true, set, nil
}

// queue adds the newest Kueue with a LocalQueue.
func (w *world) queue(name string, active, message string) {
	w.queueIn(kueuetest.Versions[len(kueuetest.Versions)-1], name, active, message)
}

// queueIn adds a version of Kueue, with a LocalQueue and a WorkloadPriorityClass in the newest version of its API.
func (w *world) queueIn(version kueuetest.Version, name string, active, message string) {
	w.groups, w.kueue = append(slices.Clone(w.groups), kueue.Group), &version
	api := schema.GroupVersion{Group: kueue.Group, Version: version.API[len(version.API)-1]}
	priorities := api.WithResource("workloadpriorityclasses")
	w.others[priorities] = append(w.others[priorities], &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": api.String(), "kind": "WorkloadPriorityClass", "metadata": map[string]any{"name": "urgent"}, "value": int64(1000),
	}})
	queues := api.WithResource("localqueues")
	w.others[queues] = append(w.others[queues], &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": api.String(), "kind": "LocalQueue", "metadata": map[string]any{"name": name, "namespace": "nccl-test"},
		"spec": map[string]any{"clusterQueue": "gpus"},
		"status": map[string]any{"pendingWorkloads": int64(2), "admittedWorkloads": int64(1),
			"conditions": []any{map[string]any{"type": "Active", "status": active, "message": message}}},
	}})
}

func (w *world) dry(action clienttesting.Action) {
	if options := action.(clienttesting.CreateActionImpl).CreateOptions; !slices.Equal(options.DryRun, []string{metav1.DryRunAll}) {
		w.t.Errorf("%s %s is not a dry run", action.GetVerb(), action.GetResource().Resource)
	}
}

func (w *world) makeAccount(action clienttesting.Action) (bool, runtime.Object, error) {
	w.dry(action)
	if w.noNamespace {
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, action.GetNamespace())
	}
	return true, action.(clienttesting.CreateAction).GetObject(), nil
}

// admit returns the part of OpenShift's admission that the pods of these tests need: the required constraint, otherwise
// restricted-v2 for pods that request nothing special.
func (w *world) admit(action clienttesting.Action) (bool, runtime.Object, error) {
	if slices.Contains(w.forbidden, "create pods") {
		return false, nil, nil
	}
	w.dry(action)
	pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod).DeepCopy()
	w.mu.Lock()
	w.asked = append(w.asked, pod.DeepCopy())
	w.mu.Unlock()
	refused := func(text string) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod.GenerateName, fmt.Errorf("%s", text))
	}
	if w.refuse != nil {
		if text := w.refuse(pod); text != "" {
			return refused(text)
		}
	}
	if !slices.Contains(w.groups, securityGroup) {
		return true, pod, nil
	}
	account := "system:serviceaccount:" + pod.Namespace + ":" + pod.Spec.ServiceAccountName
	scc := pod.Annotations[objects.SCCAnnotation]
	train := pod.Spec.Containers[0].SecurityContext
	if scc == "" {
		scc = "restricted-v2"
		if train.Capabilities != nil && len(train.Capabilities.Add) > 0 {
			// From the most restrictive one.
			able := slices.DeleteFunc([]string{"mlenv-rdma", "nccl-scc", "privileged"}, func(scc string) bool {
				return !slices.Contains(w.uses[stepsUser], scc) && !slices.Contains(w.uses[account], scc)
			})
			if len(able) == 0 {
				return refused(`unable to validate against any security context constraint: [provider "anyuid": Forbidden: not usable by user or ` +
					`serviceaccount, provider restricted-v2: .containers[0].capabilities.add: Invalid value: "IPC_LOCK": capability may not be added, ` +
					`provider "privileged": Forbidden: not usable by user or serviceaccount]`)
			}
			scc = able[0]
		}
	}
	subject := ""
	for _, user := range []string{stepsUser, account} {
		if slices.Contains(w.uses[user], scc) {
			subject = map[bool]string{true: "serviceaccount", false: "user"}[user == account]
		}
	}
	if scc != "restricted-v2" && subject == "" {
		return refused(
			fmt.Sprintf(`unable to validate against any security context constraint: [provider %q: Forbidden: not usable by user or serviceaccount]`,
				scc))
	}
	if scc == "restricted-v2" {
		subject = "serviceaccount"
		train.RunAsUser = new(int64(1000660000))
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, map[string]string{objects.AdmittedByAnnotation: scc, admittedFor: subject})
	return true, pod, nil
}

var openshift = []string{tektonGroup, buildGroup, imageGroup, routeGroup, securityGroup, attachmentGroup}

// barcelona returns a healthy cluster for the shipped cluster file.
func barcelona(t *testing.T) (*world, cluster.File) {
	file := load(t, "barcelona")
	w := &world{t: t, groups: openshift, uses: map[string][]string{"system:serviceaccount:nccl-test:ml-dev-sa": {"restricted-v2"}},
		others: map[schema.GroupVersionResource][]*unstructured.Unstructured{}}
	w.objects = append(w.objects, account(file), class(file.Storage.ClassRWO, "openshift-storage.rbd.csi.ceph.com", ""),
		class(file.Storage.ClassRWX, "openshift-storage.cephfs.csi.ceph.com", ""))
	rails := []corev1.ResourceName{}
	for i, nic := range []string{"eno5np0", "eno6np0", "eno7np0", "eno8np0"} {
		rails = append(rails, corev1.ResourceName("openshift.io/"+nic+"rdma"))
		w.attach(nic, "openshift.io/"+nic+"rdma", fmt.Sprintf("10.0.%d.0/24", 103+i))
	}
	for _, name := range file.Nodes.GPUNodes {
		w.objects = append(w.objects, node(name, rails...))
	}
	w.configure("intel_iommu=on", "iommu=pt")
	w.raiseMemlock()
	return w, file
}

// cairo returns a healthy cluster: privileged pods, the host's devices, an NFS server.
func cairo(t *testing.T) (*world, cluster.File) {
	file := load(t, "cairo")
	w := &world{t: t, groups: openshift,
		uses:   map[string][]string{"system:serviceaccount:nccl-test:ml-dev-sa": {"restricted-v2", "privileged"}},
		others: map[schema.GroupVersionResource][]*unstructured.Unstructured{}}
	w.objects = append(w.objects, account(file), class(file.Storage.ClassRWO, "openshift-storage.rbd.csi.ceph.com", ""),
		class(file.Storage.ClassRWX, "nfs.csi.k8s.io", "nfs-server.nfs.svc.cluster.local"),
		serverClaim(new(file.Storage.ClassRWO), corev1.ClaimBound))
	for _, name := range file.Nodes.GPUNodes {
		w.objects = append(w.objects, node(name))
	}
	w.configure("intel_iommu=on iommu=pt")
	return w, file
}

func (w *world) attach(nic, resource, addresses string) {
	name := nic + "-network"
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name, "namespace": "default", "annotations": map[string]any{attachment.ResourceAnnotation: resource}},
		"spec": map[string]any{
			"config": fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"sriov","vlan":0,"spoofchk":"off","trust":"on","link_state":"enable",`+
				`"ipam":{"type":"whereabouts","range":%q}}`, name, addresses)},
	}}
	w.detach(nic)
	w.others[attachment.Resource()] = append(w.others[attachment.Resource()], object)
}

func (w *world) detach(nic string) {
	w.others[attachment.Resource()] = slices.DeleteFunc(w.others[attachment.Resource()], func(o *unstructured.Unstructured) bool {
		return o.GetName() == nic+"-network"
	})
}

func (w *world) configure(arguments ...any) {
	w.others[machineConfigs] = []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": map[string]any{"name": "rendered-worker-1"},
		"spec": map[string]any{"kernelArguments": arguments},
	}}}
}

// raiseMemlock adds the file of mlenv admin's MachineConfig to the machine configuration.
func (w *world) raiseMemlock() {
	w.addFile("/etc/crio/crio.conf.d/99-memlock", "data:text/plain;charset=utf-8;base64,"+
		base64.StdEncoding.EncodeToString([]byte("[crio.runtime]\ndefault_ulimits = [\"memlock=-1:-1\"]\n")))
}

func (w *world) addFile(path, source string) {
	config := w.others[machineConfigs][0].Object
	files, _, _ := unstructured.NestedSlice(config, "spec", "config", "storage", "files")
	files = append(files, map[string]any{"path": path, "contents": map[string]any{"source": source}})
	if err := unstructured.SetNestedSlice(config, files, "spec", "config", "storage", "files"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) each(change func(*corev1.Node)) {
	for _, object := range w.objects {
		if n, ok := object.(*corev1.Node); ok {
			change(n)
		}
	}
}

func load(t *testing.T, name string) cluster.File {
	t.Helper()
	path := filepath.Join("../../../clusters", name+".yaml")
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

func account(file cluster.File) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: file.Security.ServiceAccount, Namespace: file.Cluster.Namespace}}
}

func class(name, provisioner, server string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
	if server != "" {
		c.Parameters = map[string]string{"server": server}
	}
	return c
}

// serverClaim returns the claim of Cairo's NFS server.
func serverClaim(class *string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "nfs-server-root", Namespace: "nfs"},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: class}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase},
	}
}

func node(name string, rails ...corev1.ResourceName) *corev1.Node {
	has := corev1.ResourceList{gpu: resource.MustParse("4"), corev1.ResourceCPU: resource.MustParse("128"),
		corev1.ResourceMemory: resource.MustParse("1Ti")}
	for _, rail := range rails {
		has[rail] = resource.MustParse("1")
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name},
			Annotations: map[string]string{currentConfig: "rendered-worker-1", desiredConfig: "rendered-worker-1"}},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has.DeepCopy(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// holder returns another user's pod with GPUs of a node.
func holder(name, node, gpus string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "others"},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse(gpus)}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// without removes the objects with this name.
func (w *world) without(name string) {
	w.objects = slices.DeleteFunc(w.objects, func(o runtime.Object) bool { return o.(metav1.Object).GetName() == name })
}

// print returns the report as users see it.
func print(r Report) string {
	var out strings.Builder
	r.Print(&out)
	return out.String()
}
