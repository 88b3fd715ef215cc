// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// served returns a StatefulSet as the API server v1.34 returns it, with the defaults that the server adds. The defaults were
// found by decoding, defaulting and converting a StatefulSet with the server's code.
func served(set *appsv1.StatefulSet) *appsv1.StatefulSet {
	set = set.DeepCopy()
	set.Generation = 1
	set.Spec.RevisionHistoryLimit = new(int32(10))
	pod := &set.Spec.Template.Spec
	pod.DNSPolicy, pod.RestartPolicy, pod.SchedulerName = corev1.DNSClusterFirst, corev1.RestartPolicyAlways, corev1.DefaultSchedulerName
	pod.DeprecatedServiceAccount = pod.ServiceAccountName
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			c := &containers[i]
			c.ImagePullPolicy = corev1.PullIfNotPresent
			c.TerminationMessagePath, c.TerminationMessagePolicy = "/dev/termination-log", corev1.TerminationMessageReadFile
			if c.ReadinessProbe != nil {
				c.ReadinessProbe.SuccessThreshold = 1
			}
			for _, v := range c.Env {
				if v.ValueFrom != nil {
					v.ValueFrom.FieldRef.APIVersion = "v1"
				}
			}
		}
	}
	for _, volume := range pod.Volumes {
		if volume.ConfigMap != nil {
			volume.ConfigMap.DefaultMode = new(int32(0o644))
		}
	}
	for i := range set.Spec.VolumeClaimTemplates {
		set.Spec.VolumeClaimTemplates[i].Status.Phase = corev1.ClaimPending
	}
	return set
}

func TestSameRequestMakesNoDifference(t *testing.T) {
	for _, name := range []string{"barcelona", "cairo", "local", "nerc-production"} {
		for _, mode := range []cluster.StorageMode{cluster.SharedStorage, cluster.NodeStorage} {
			r := request(t, name)
			r.Storage = mode
			r.Cluster.Network.TrustedCA, r.Cluster.Image.PullSecret = "ca", "registry"
			// The same amount, written differently.
			again := r
			again.WorkspaceSize = "102400Mi"
			if name == "local" {
				again.WorkspaceSize = "1024Mi"
			}
			again.Cluster.Resources.Limits.CPU = cluster.Quantity{Quantity: resource.MustParse(r.Cluster.Resources.Limits.CPU.String() + "000m")}
			for _, d := range Differences(served(build(t, r).StatefulSet), build(t, again).StatefulSet) {
				t.Errorf("%s, %s: %s", name, mode, d)
			}
		}
	}
}

func TestDifferences(t *testing.T) {
	type want struct {
		text   string
		change Change
	}
	tests := []struct {
		name   string
		change func(*Request)
		want   []want
	}{
		{"image", func(r *Request) { r.Image = "registry.example.com/team/training:2" }, []want{
			{"image: registry.example.com/team/training:1 -> registry.example.com/team/training:2", Recreate}}},
		{"steps image", func(r *Request) { r.StepsImage = "steps:2" }, []want{
			{"steps image: registry.example.com/ml-dev-env/steps:1 -> steps:2", Recreate}}},
		{"more nodes", func(r *Request) { r.Nodes = 3 }, []want{
			{"nodes: 2 -> 3", Live}, {"variable NUM_NODES: 2 -> 3", Recreate}, {"variable WORLD_SIZE: 8 -> 12", Recreate}}},
		{"fewer nodes", func(r *Request) { r.Nodes = 1 }, []want{
			{"nodes: 2 -> 1", Live}, {"variable NUM_NODES: 2 -> 1", Recreate}, {"variable WORLD_SIZE: 8 -> 4", Recreate}}},
		{"GPUs", func(r *Request) { r.GPUsPerNode = new(2) }, []want{
			{"variable GPUS_PER_NODE: 4 -> 2", Recreate}, {"variable WORLD_SIZE: 8 -> 4", Recreate}, {"GPUs of a node: 4 -> 2", Recreate}}},
		{"no GPUs", func(r *Request) { r.GPUsPerNode = new(0) }, []want{
			{"variable GPUS_PER_NODE: 4 -> 0", Recreate}, {"variable NVIDIA_VISIBLE_DEVICES: none -> void", Recreate},
			{"variable WORLD_SIZE: 8 -> 0", Recreate}, {"GPUs of a node: 4 -> none", Recreate}}},
		{"memory and processors", func(r *Request) {
			r.Cluster.Resources.Requests.Memory, r.Cluster.Resources.Limits.Memory = cluster.MustParseQuantity("64Gi"), cluster.MustParseQuantity(
				"512Gi")
			r.Cluster.Resources.Requests.CPU, r.Cluster.Resources.Limits.CPU = cluster.MustParseQuantity("16"), cluster.MustParseQuantity("48")
		}, []want{
			{"processor limit: 64 -> 48", Recreate}, {"memory limit: 256Gi -> 512Gi", Recreate},
			{"processor request: 32 -> 16", Recreate}, {"memory request: 128Gi -> 64Gi", Recreate},
			{"size of /dev/shm: 128Gi -> 256Gi", Recreate}}},
		{"storage mode", func(r *Request) { r.Storage = cluster.SharedStorage }, []want{
			{"variable MLENV_NODE_CACHES: none -> true", Recreate}, {"storage mode: volumeClaimTemplates -> rwx", Immutable}}},
		{"storage size and class", func(r *Request) { r.WorkspaceSize, r.Cluster.Storage.ClassRWO = "200Gi", "fast" }, []want{
			{"storage class of claim ml-dev-datasets: ocs-external-storagecluster-ceph-rbd -> fast", Immutable},
			{"size of claim ml-dev-workspace: 100Gi -> 200Gi", Immutable},
			{"storage class of claim ml-dev-workspace: ocs-external-storagecluster-ceph-rbd -> fast", Immutable}}},
		{"a variable", func(r *Request) { r.Cluster.NCCL.Debug, r.Cluster.Network.TCP.P2PLevel = "WARN", "" }, []want{
			{"variable NCCL_DEBUG: INFO -> WARN", Recreate}, {"variable NCCL_P2P_LEVEL: NVL -> none", Recreate}}},
		{"nodes that may be used", func(r *Request) { r.Cluster.Nodes.GPUNodes = nil }, []want{
			{"allowed nodes: kubernetes.io/hostname In moc-r4pcc02u15-yunshi, moc-r4pcc02u16-yunshi, moc-r4pcc02u17-nairr, " +
				"moc-r4pcc02u18-nairr, moc-r4pcc02u25-nairr -> any node with GPUs", Recreate}}},
		{"excluded nodes", func(r *Request) { r.ExcludeNodes = []string{"moc-r4pcc02u15-yunshi"} }, []want{
			{"allowed nodes: kubernetes.io/hostname In moc-r4pcc02u15-yunshi, moc-r4pcc02u16-yunshi, moc-r4pcc02u17-nairr, " +
				"moc-r4pcc02u18-nairr, moc-r4pcc02u25-nairr -> kubernetes.io/hostname In moc-r4pcc02u16-yunshi, moc-r4pcc02u17-nairr, " +
				"moc-r4pcc02u18-nairr, moc-r4pcc02u25-nairr metadata.name NotIn moc-r4pcc02u15-yunshi", Recreate}}},
		{"queue", func(r *Request) { r.Queue = "team-a" }, []want{{"queue: none -> team-a", Immutable}}},
		{"priority", func(r *Request) { r.Queue, r.QueuePriority = "team-a", "urgent" }, []want{
			{"priority in the queue: none -> urgent", Immutable}, {"queue: none -> team-a", Immutable}}},
		{"label of racks", func(r *Request) { r.RackLevel = "example.com/rack" }, []want{{"label of racks: none -> example.com/rack", Recreate}}},
		{"tolerations", func(r *Request) {
			r.Cluster.Nodes.Tolerations = []cluster.Toleration{{Key: "nairr", Operator: "Exists"}}
		}, []want{
			{"tolerations: NoSchedule nvidia.com/gpu Exists -> NoSchedule nvidia.com/gpu Exists, nairr Exists", Recreate}}},
		{"pull secret", func(r *Request) { r.Cluster.Image.PullSecret = "registry" }, []want{{"pull secret: none -> registry", Recreate}}},
		{"service account", func(r *Request) { r.Cluster.Security.ServiceAccount = "trainer" }, []want{
			{"service account: ml-dev-sa -> trainer", Recreate}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := request(t, "barcelona")
			live := served(build(t, r).StatefulSet)
			test.change(&r)
			var got []want
			for _, d := range Differences(live, build(t, r).StatefulSet) {
				got = append(got, want{d.String(), d.Change})
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestWhatIsTakenAwayIsADifference removes values; most of the table adds them.
func TestWhatIsTakenAwayIsADifference(t *testing.T) {
	r := request(t, "nerc-production")
	plain := build(t, r).StatefulSet
	r.Cluster.Network.TrustedCA, r.Cluster.Image.PullSecret = "ca", "registry"
	r.Cluster.Nodes.GPUNodes = cluster.NodeNames{"wrk-97", "wrk-98"}
	found := map[string]string{}
	for _, d := range Differences(served(build(t, r).StatefulSet), plain) {
		found[d.What] = d.New
	}
	for what, want := range map[string]string{
		"trusted CA": none, "pull secret": none, "variable SSL_CERT_FILE": none, "allowed nodes": "any node with GPUs",
		"mount at /etc/mlenv/ca": none,
	} {
		if got, ok := found[what]; !ok || got != want {
			t.Errorf("%s becomes %q (reported: %v), want %q", what, got, ok, want)
		}
	}
}

// TestReplacedPullSecretIsNoDifference: OpenShift may replace the pull secrets that it created for the service account.
func TestReplacedPullSecretIsNoDifference(t *testing.T) {
	r := request(t, "barcelona")
	with := func(names ...string) *appsv1.StatefulSet {
		set := build(t, r).StatefulSet
		for _, name := range names {
			set.Spec.Template.Spec.ImagePullSecrets = append(set.Spec.Template.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
		}
		return set
	}
	for _, test := range []struct {
		live, want *appsv1.StatefulSet
		found      int
	}{
		{with("mine", "ml-dev-sa-dockercfg-1"), with("mine", "ml-dev-sa-dockercfg-2"), 0},
		{with("ml-dev-sa-dockercfg-1"), with(), 0},
		{with("mine", "other-dockercfg-1"), with("mine"), 1},
	} {
		if found := Differences(served(test.live), test.want); len(found) != test.found {
			t.Errorf("differences %v, want %d", found, test.found)
		}
	}
}

// TestEveryFieldIsCompared changes each value that Build sets in a live StatefulSet, one at a time. Differences must
// report each change.
func TestEveryFieldIsCompared(t *testing.T) {
	for _, mode := range []cluster.StorageMode{cluster.SharedStorage, cluster.NodeStorage} {
		r := request(t, "barcelona")
		r.Storage, r.Cluster.Network.TrustedCA, r.Cluster.Image.PullSecret = mode, "ca", "registry"
		want := build(t, r).StatefulSet
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&want.Spec)
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		eachLeaf("spec", spec, func(path string) {
			live := want.DeepCopy()
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &live.Spec); err != nil {
				return // the changed value has another type, for example an int
			}
			count++
			if len(Differences(live, want)) == 0 {
				t.Errorf("%s: another value makes no difference", path)
			}
		})
		if count < 100 {
			t.Errorf("%s: %d values were changed, want over 100", mode, count)
		}
	}
}

// eachLeaf changes each value in a tree, calls visit, and restores the value.
func eachLeaf(path string, node any, visit func(path string)) {
	leaf := func(at string, value any, set func(any)) {
		switch old := value.(type) {
		case string:
			set(old + "1")
		case int64:
			set(old + 1)
		case bool:
			set(!old)
		default:
			eachLeaf(at, value, visit)
			return
		}
		visit(at)
		set(value)
	}
	switch node := node.(type) {
	case map[string]any:
		for key, value := range node {
			// Labels are not compared. In a claim template only the claim is.
			if key == "metadata" || key == "apiVersion" || key == "kind" || key == "status" {
				continue
			}
			leaf(path+"."+key, value, func(v any) { node[key] = v })
		}
	case []any:
		for i, value := range node {
			leaf(fmt.Sprintf("%s[%d]", path, i), value, func(v any) { node[i] = v })
		}
	}
}

// TestKueuesLabels: Kueue may add labels to a StatefulSet without them, and a second provision must not take these for a
// difference.
func TestKueuesLabels(t *testing.T) {
	for _, test := range []struct {
		queue, priority string
		change          func(*Request)
		want            []string
	}{
		{"default", "normal", func(*Request) {}, nil},
		{"default", "", func(r *Request) { r.Queue = "team-a" }, []string{"queue: default -> team-a"}},
		{"team-a", "", func(*Request) {}, []string{"queue: team-a -> none"}},
		{"team-a", "normal", func(r *Request) { r.Queue = "team-a" }, nil},
		{"team-a", "normal", func(r *Request) { r.Queue, r.QueuePriority = "team-a", "urgent" },
			[]string{"priority in the queue: normal -> urgent"}},
	} {
		r := request(t, "barcelona")
		live := served(build(t, r).StatefulSet)
		live.Labels[kueue.QueueLabel] = test.queue
		if test.priority != "" {
			live.Labels[kueue.PriorityLabel] = test.priority
		}
		test.change(&r)
		var got []string
		for _, d := range Differences(live, build(t, r).StatefulSet) {
			got = append(got, d.String())
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s, %s (-want +got):\n%s", test.queue, test.priority, diff)
		}
	}
}
