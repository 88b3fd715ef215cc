// SPDX-License-Identifier: Apache-2.0

package initcluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// world is a cluster. The fakes validate nothing and ignore field selectors.
type world struct {
	host    string
	objects []runtime.Object
	others  map[schema.GroupVersionResource][]*unstructured.Unstructured
	// uses lists the constraints that the pods' account may use.
	uses []string
	// forbidden lists resources that may not be listed in all namespaces; listing them in one namespace is allowed.
	forbidden []string
	plain     bool
}

func (w *world) clients(t *testing.T, namespace string) *kube.Clients {
	t.Helper()
	client := kubefake.NewClientset(w.objects...)
	groups := []string{openshift, infrastructures.Group, policies.Group, nicPolicies.Group, attachment.Resource().Group}
	if w.plain {
		groups = nil
	}
	for _, group := range groups {
		client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: group + "/v1"})
	}
	client.PrependReactor("create", "localsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.LocalSubjectAccessReview).DeepCopy()
		review.Status.Allowed = slices.Contains(w.uses, review.Spec.ResourceAttributes.Name)
		return true, review, nil
	})
	forbid := func(action clienttesting.Action) (bool, runtime.Object, error) {
		if !slices.Contains(w.forbidden, action.GetResource().Resource) || action.GetNamespace() != "" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "",
			fmt.Errorf("User %q cannot %s resource %q in API group %q at the cluster scope",
				"h-kim", action.GetVerb(), action.GetResource().Resource, action.GetResource().Group))
	}
	client.PrependReactor("*", "*", forbid)
	others := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		attachment.Resource(): "NetworkAttachmentDefinitionList", constraints: "SecurityContextConstraintsList",
		policies: "SriovNetworkNodePolicyList", nicPolicies: "NicClusterPolicyList", infrastructures: "InfrastructureList", proxies: "ProxyList",
	})
	for where, objects := range w.others {
		for _, object := range objects {
			if _, err := others.Resource(where).Namespace(object.GetNamespace()).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	others.PrependReactor("*", "*", forbid)
	return &kube.Clients{Kube: client, Objects: others, Config: &rest.Config{Host: w.host}, Namespace: namespace}
}

func (w *world) add(where schema.GroupVersionResource, kind, namespace, name string, fields map[string]any) {
	object := &unstructured.Unstructured{Object: fields}
	object.SetAPIVersion(where.GroupVersion().String())
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	if w.others == nil {
		w.others = map[schema.GroupVersionResource][]*unstructured.Unstructured{}
	}
	w.others[where] = append(w.others[where], object)
}

func (w *world) constraint(name string, privileged bool, capabilities ...any) {
	w.add(constraints, "SecurityContextConstraints", "", name,
		map[string]any{"allowPrivilegedContainer": privileged, "allowedCapabilities": capabilities})
}

func node(name string, gpus string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, productLabel: "NVIDIA-H100-80GB-HBM3"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{gpu: resource.MustParse(gpus), corev1.ResourceCPU: resource.MustParse("127500m"),
				corev1.ResourceMemory: resource.MustParse("1000Gi")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	change(n)
	n.Status.Capacity = n.Status.Allocatable.DeepCopy()
	return n
}

func class(name, provisioner string, isDefault bool) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
	if isDefault {
		c.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	}
	return c
}

func holder(name, node, gpus string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "others"},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse(gpus)}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// barcelona returns a cluster with SR-IOV, CephFS, nodes of two owners (one of them taints its nodes), and another kind of
// node.
func barcelona() *world {
	w := &world{host: "https://api.barcelona.nerc.mghpcc.org:6443", uses: []string{"restricted-v2", "nccl-scc"}}
	nics := []string{"eno5np0", "eno6np0", "eno7np0", "eno8np0"}
	for _, name := range []string{"moc-r4pcc02u17-nairr", "moc-r4pcc02u18-nairr", "moc-r4pcc04u25-nairr", "moc-r4pcc02u15-yunshi",
		"moc-r4pcc02u16-yunshi"} {
		w.objects = append(w.objects, node(name, "4", func(n *corev1.Node) {
			for _, nic := range nics {
				n.Status.Allocatable[corev1.ResourceName("openshift.io/"+nic+"rdma")] = resource.MustParse("1")
			}
			if strings.HasSuffix(name, "yunshi") {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "nerc.mghpcc.org/owner", Value: "yunshi", Effect: corev1.TaintEffectNoSchedule})
			}
			n.Spec.Unschedulable = name == "moc-r4pcc02u16-yunshi"
		}))
	}
	w.objects = append(w.objects, node("wrk-7", "1", func(n *corev1.Node) { n.Labels[productLabel] = "Tesla-V100-PCIE-32GB" }),
		node("ctl-0", "0", func(n *corev1.Node) { delete(n.Status.Allocatable, gpu) }), holder("llm-0", "moc-r4pcc02u17-nairr", "3"),
		class("ocs-external-storagecluster-ceph-rbd", "openshift-storage.rbd.csi.ceph.com", true),
		class("ocs-external-storagecluster-cephfs", "openshift-storage.cephfs.csi.ceph.com", false),
		class("ocs-external-storagecluster-ceph-rgw", "openshift-storage.ceph.rook.io/bucket", false))
	for i, nic := range nics {
		w.add(policies, "SriovNetworkNodePolicy", "openshift-sriov-network-operator", nic,
			map[string]any{"spec": map[string]any{"resourceName": nic + "rdma", "isRdma": true}})
		w.add(attachment.Resource(), "NetworkAttachmentDefinition", "default", nic+"-network", map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{attachment.ResourceAnnotation: "openshift.io/" + nic + "rdma"}},
			"spec":     map[string]any{"config": fmt.Sprintf(`{"type":"sriov","ipam":{"type":"whereabouts","range":"10.0.%d.0/24"}}`, 103+i)},
		})
	}
	w.constraint("restricted-v2", false)
	w.constraint("nccl-scc", false, "IPC_LOCK")
	w.constraint("privileged", true, "*")
	w.add(infrastructures, "Infrastructure", "", "cluster",
		map[string]any{"status": map[string]any{"apiServerURL": "https://api.barcelona.nerc.mghpcc.org:6443"}})
	return w
}

// claim returns a bound claim of namespace nccl-test that several nodes can mount.
func claim(name, size string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	list := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "nccl-test", Name: name, CreationTimestamp: metav1.NewTime(time.Date(2026, 2, 3, 0, 0, 0, 0, time.UTC)),
		},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: list}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: list},
	}
	for _, ch := range change {
		ch(c)
	}
	return c
}

// The claims that exist are proposed with their sizes, unless the default environment's own is older, or there are several.
// Racks are looked for in labels first, and then in names.
func TestRacks(t *testing.T) {
	for want, nodes := range map[string][]corev1.Node{
		"  # Racks come from topology.kubernetes.io/zone, which needs no key: a, b.\n": {labelled("n1", corev1.LabelTopologyZone, "b"),
			labelled("n2", corev1.LabelTopologyZone, "a")},
		"  # guess: nodes.rack_label: by its name, and because every node has it: r1\n  rack_label: example.com/rack\n": {
			labelled("n1", "example.com/rack", "r1"), labelled("n2", "example.com/rack", "r1")},
		"  # Neither labels nor names have the nodes' racks; rack_label or rack_pattern can.\n": {labelled("n1", "example.com/rack", "r1"),
			labelled("n2", "example.com/other", "r1")},
	} {
		var w writer
		if w.racks(nodes); w.text.String() != want {
			t.Errorf("got %q, want %q", w.text.String(), want)
		}
	}
}

func labelled(name, label, value string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: value}}}
}

func TestClaimsAreProposed(t *testing.T) {
	younger := func(c *corev1.PersistentVolumeClaim) {
		c.CreationTimestamp = metav1.NewTime(c.CreationTimestamp.Add(time.Hour))
	}
	for _, tc := range []struct {
		name   string
		claims []runtime.Object
		want   cluster.Storage
		says   string
	}{
		{"none", nil, cluster.Storage{}, "storage.workspace_size, storage.datasets_size: the defaults"},
		{"cairo's", []runtime.Object{claim("ml-dev-workspace", "50Gi"), claim("ml-datasets", "1Ti")}, cluster.Storage{
			DatasetsClaim: "ml-datasets", DatasetsSize: cluster.MustParseQuantity("1Ti"), WorkspaceSize: cluster.MustParseQuantity("50Gi")},
			"storage.datasets_claim: claim ml-datasets exists, with 1Ti; whether it has files is not known"},
		{"an empty one next to it", []runtime.Object{claim("ml-datasets", "1Ti"), claim("ml-dev-datasets", "500Gi", younger)}, cluster.Storage{
			DatasetsClaim: "ml-datasets", DatasetsSize: cluster.MustParseQuantity("1Ti")}, ""},
		{"something younger", []runtime.Object{claim("jupyter-data", "1Ti", younger), claim("ml-dev-datasets", "50Gi")}, cluster.Storage{
			DatasetsSize: cluster.MustParseQuantity("50Gi")}, "storage.datasets_size: the size of claim ml-dev-datasets, which exists"},
		{"two", []runtime.Object{claim("data-a", "1Ti"), claim("data-b", "2Ti")}, cluster.Storage{},
			"storage.datasets_claim: which of these claims has the files for /datasets: data-a (1Ti), data-b (2Ti)"},
		{"another environment's", []runtime.Object{claim("h-kim-datasets", "1Ti", func(c *corev1.PersistentVolumeClaim) {
			c.Labels = map[string]string{"ml-dev-env.github.io/environment": "h-kim"}
		})}, cluster.Storage{}, "the defaults"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := cairo()
			w.objects = append(w.objects, tc.claims...)
			facts, err := inspectCluster(t.Context(), w.clients(t, "nccl-test"), "cairo", "ml-dev-sa")
			if err != nil {
				t.Fatal(err)
			}
			draft, err := Write(facts)
			if err != nil {
				t.Fatal(err)
			}
			got, d := draft.File.Storage, cluster.Default().Storage
			size := func(q, or cluster.Quantity) string {
				if q.IsZero() {
					q = or
				}
				return q.String()
			}
			if got.DatasetsClaim != tc.want.DatasetsClaim || got.WorkspaceClaim != tc.want.WorkspaceClaim ||
				got.WorkspaceSize.String() != size(tc.want.WorkspaceSize, d.WorkspaceSize) ||
				got.DatasetsSize.String() != size(tc.want.DatasetsSize, d.DatasetsSize) ||
				!strings.Contains(string(draft.Text), tc.says) {
				t.Errorf("got %+v, want %+v, in\n%s", got, tc.want, draft.Text)
			}
		})
	}
}

// cairo returns a cluster with the host's devices and NFS.
func cairo() *world {
	w := &world{host: "https://api.cairo.test.nerc.mghpcc.org:6443", uses: []string{"restricted-v2", "privileged"}}
	for _, name := range []string{"moc-r4pcc02u15", "moc-r4pcc02u16"} {
		w.objects = append(w.objects, node(name, "4", func(n *corev1.Node) {
			n.Labels["feature.node.kubernetes.io/rdma.available"] = "true"
			n.Labels["feature.node.kubernetes.io/pci-15b3.present"] = "true"
		}))
	}
	w.objects = append(w.objects, class("nfs-csi", "nfs.csi.k8s.io", false),
		class("ocs-external-storagecluster-ceph-rbd", "openshift-storage.rbd.csi.ceph.com", true))
	w.constraint("restricted-v2", false)
	w.constraint("privileged", true, "*")
	w.add(proxies, "Proxy", "", "cluster",
		map[string]any{"status": map[string]any{"httpProxy": "http://proxy.example.com:3128", "noProxy": ".cluster.local,10.0.0.0/8"}})
	return w
}

// sharedDevices returns a cluster that was set up by OpenShift's guide to GPUDirect RDMA: pools of shared cards, one of Ethernet and one
// of InfiniBand, with a network for each, and an interface for storage that belongs to none. The policy may not be readable.
func sharedDevices(readable bool) *world {
	w := &world{host: "https://api.ocp.example.com:6443", uses: []string{"restricted-v2", "mlenv-rdma"}}
	for _, name := range []string{"gpu-0", "gpu-1"} {
		w.objects = append(w.objects, node(name, "8", func(n *corev1.Node) {
			n.Labels["feature.node.kubernetes.io/pci-15b3.present"] = "true"
			n.Status.Allocatable["rdma/rdma_shared_device_eth"] = resource.MustParse("63")
		}))
	}
	w.objects = append(w.objects, class("nfs-csi", "nfs.csi.k8s.io", true))
	network := func(name, config string) {
		w.add(attachment.Resource(), "NetworkAttachmentDefinition", "default", name, map[string]any{"spec": map[string]any{"config": config}})
	}
	for i, nic := range []string{"ens8f0np0", "ens9f0np0"} {
		network("rdmashared-"+nic, fmt.Sprintf(`{"cniVersion":"0.3.1","name":"rdmashared-%[1]s","type":"macvlan","master":"%[1]s",`+
			`"mode":"bridge","mtu":9000,"ipam":{"type":"whereabouts","range":"192.168.%d.0/24"}}`, nic, i+2))
	}
	if !readable {
		w.forbidden = []string{nicPolicies.Resource}
	} else {
		network("storage", `{"type":"macvlan","master":"eno1","ipam":{"type":"whereabouts","range":"10.9.0.0/24"}}`)
	}
	plugin := map[string]any{
		"config": `{"configList":[{"resourceName":"rdma_shared_device_ib","rdmaHcaMax":63,"selectors":{"ifNames":["ibs2f0"]}},` +
			`{"resourceName":"rdma_shared_device_eth","rdmaHcaMax":63,"selectors":{"ifNames":["ens8f0np0","ens9f0np0"]}}]}`}
	w.add(nicPolicies, "NicClusterPolicy", "", "nic-cluster-policy", map[string]any{"spec": map[string]any{"rdmaSharedDevicePlugin": plugin}})
	w.constraint("restricted-v2", false)
	w.constraint("mlenv-rdma", false, "IPC_LOCK")
	return w
}

func TestGolden(t *testing.T) {
	narrow := barcelona()
	// A user of one namespace may not read these. init knows the name privileged without reading it.
	narrow.forbidden = []string{"nodes", "pods", "storageclasses", "securitycontextconstraints", "sriovnetworknodepolicies",
		"network-attachment-definitions", "infrastructures", "proxies"}
	elsewhere := &world{host: "https://127.0.0.1:16443", plain: true, objects: []runtime.Object{node("gpu-1", "2", func(n *corev1.Node) {
		delete(n.Labels, productLabel)
		n.Status.Allocatable[corev1.ResourceMemory], n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("64Gi"), resource.MustParse(
			"16")
	})}}
	shared := barcelona()
	for _, object := range shared.others[attachment.Resource()] {
		if err := unstructured.SetNestedField(object.Object, `{"type":"sriov","ipam":{"type":"whereabouts","range":"10.0.103.0/24"}}`, "spec",
			"config"); err != nil {
			t.Fatal(err)
		}
	}
	unprivileged := cairo()
	unprivileged.uses = []string{"restricted-v2"}
	for name, test := range map[string]struct {
		world           *world
		name, namespace string
	}{
		"barcelona":         {barcelona(), "barcelona", "nccl-test"},
		"barcelona-narrow":  {narrow, "", "nccl-test"},
		"one-range":         {shared, "barcelona", "nccl-test"},
		"cairo":             {cairo(), "", "nccl-test"},
		"shared-devices":    {sharedDevices(true), "", "nccl-test"},
		"shared-unread":     {sharedDevices(false), "", "nccl-test"},
		"cairo-restricted":  {unprivileged, "", "nccl-test"},
		"plain-kubernetes":  {elsewhere, "", "default"},
		"nothing-but-an-ip": {&world{host: "https://10.1.2.3:8443", plain: true}, "", "team"},
	} {
		t.Run(name, func(t *testing.T) {
			facts, err := inspectCluster(t.Context(), test.world.clients(t, test.namespace), test.name, "ml-dev-sa")
			if err != nil {
				t.Fatal(err)
			}
			draft, err := Write(facts)
			if err != nil {
				t.Fatalf("%v\n%s", err, draft.Text)
			}
			path := filepath.Join("testdata", name+".yaml")
			golden.File(t, path, string(draft.Text))
			for _, text := range slices.Concat(draft.Guesses, draft.Unknown) {
				if !regexp.MustCompile(`^[a-z]+(\.[a-z_]+)+(, [a-z]+(\.[a-z_]+)+)*: `).MatchString(text) {
					t.Errorf("%q: want the key in full first", text)
				}
			}
		})
	}
}

// TestAgreesWithShippedFiles: what init detects on Barcelona and Cairo agrees with their shipped files, which were written
// by hand.
func TestAgreesWithShippedFiles(t *testing.T) {
	used := cairo()
	used.objects = append(used.objects, claim("ml-dev-workspace", "100Gi"), claim("ml-datasets", "500Gi"))
	for name, w := range map[string]*world{"barcelona": barcelona(), "cairo": used} {
		content, err := os.ReadFile("../../../clusters/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		want, err := cluster.Load(name, content)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := inspectCluster(t.Context(), w.clients(t, want.Cluster.Namespace), name, "ml-dev-sa")
		if err != nil {
			t.Fatal(err)
		}
		draft, err := Write(facts)
		if err != nil {
			t.Fatal(err)
		}
		got := draft.File
		for _, pair := range [][2]any{
			{got.GPUs, want.GPUs}, {got.Storage.ClassRWX, want.Storage.ClassRWX}, {got.Storage.ClassRWO, want.Storage.ClassRWO},
			{got.Network.RDMA.Enabled, want.Network.RDMA.Enabled}, {got.Network.RDMA.Attachments, want.Network.RDMA.Attachments},
			{got.Network.RDMA.Resources, want.Network.RDMA.Resources}, {got.Security.RequiresPrivilegedSCC, want.Security.RequiresPrivilegedSCC},
			{got.Resources.Requests.Memory.String(), want.Resources.Requests.Memory.String()}, {len(got.Nodes.GPUNodes), len(want.Nodes.GPUNodes)},
			{got.Network.RDMA.IBTimeout, want.Network.RDMA.IBTimeout}, {got.Network.RDMA.MinNChannels, want.Network.RDMA.MinNChannels},
			{got.Storage.DatasetsClaim, want.Storage.DatasetsClaim}, {got.Network.TCP, want.Network.TCP}, {got.Image.Flavour, want.Image.Flavour},
		} {
			if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
				t.Errorf("%s (-shipped +init):\n%s", name, diff)
			}
		}
	}
}

// Whole cards that NVIDIA's network operator gives pods have no rdma in their resource's name.
func TestHostDeviceNetwork(t *testing.T) {
	w := cairo()
	w.uses = append(w.uses, "mlenv-rdma")
	w.constraint("mlenv-rdma", false, "IPC_LOCK")
	for _, object := range w.objects {
		if n, ok := object.(*corev1.Node); ok {
			n.Status.Allocatable["nvidia.com/hostdev"] = resource.MustParse("2")
		}
	}
	w.add(attachment.Resource(), "NetworkAttachmentDefinition", "default", "hostdev-net", map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{attachment.ResourceAnnotation: "nvidia.com/hostdev"}},
		"spec":     map[string]any{"config": `{"type":"host-device","ipam":{"type":"nv-ipam","poolName":"hostdev-pool"}}`},
	})
	w.add(nicPolicies, "NicClusterPolicy", "", "nic-cluster-policy", map[string]any{"spec": map[string]any{"sriovDevicePlugin": map[string]any{
		"config": `{"resourceList":[{"resourcePrefix":"nvidia.com","resourceName":"hostdev",
 "selectors":[{"vendors":["15b3"],"isRdma":true}]}]}`}}})
	facts, err := inspectCluster(t.Context(), w.clients(t, "nccl-test"), "", "ml-dev-sa")
	if err != nil {
		t.Fatal(err)
	}
	draft, err := Write(facts)
	if err != nil {
		t.Fatal(err)
	}
	privileged, got := draft.File.Security.RequiresPrivilegedSCC, draft.File.Network.RDMA.Resources
	if diff := cmp.Diff(cluster.ResourceCounts{"nvidia.com/hostdev": 1}, got); diff != "" || privileged {
		t.Errorf("privileged %t, resources (-want +got):\n%s\n%s", privileged, diff, draft.Text)
	}
}

func TestSaveNeverOverwrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.yaml")
	draft := Draft{Text: []byte("new")}
	if err := os.WriteFile(path, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := save(path, draft, false); err == nil {
		t.Error("the file was overwritten")
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "mine" {
		t.Errorf("%q, %v; want the content as before", content, err)
	}
	if _, err := save(path, draft, true); err != nil {
		t.Errorf("with force: %v", err)
	}
}
