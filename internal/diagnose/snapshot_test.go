// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

const (
	space = "nccl-test"
	env   = "ml-dev-env"
	image = "quay.io/example/training:1"
	gpu   = corev1.ResourceName("nvidia.com/gpu")
)

// now is the time of the tests' snapshots.
var now = time.Date(2026, 2, 3, 12, 0, 0, 0, time.UTC)

// ago returns a time before now.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// snapshotOf returns a snapshot of n pods that do not exist yet: on node-1 and node-2 by name, each requesting four GPUs
// and two shared claims.
func snapshotOf(n int32) Snapshot {
	spec := corev1.PodSpec{
		ServiceAccountName: "ml-dev-sa",
		InitContainers:     []corev1.Container{{Name: "agent", Image: "quay.io/example/steps:1"}},
		Containers: []corev1.Container{{
			Name: "train", Image: image,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{gpu: resource.MustParse("4"), corev1.ResourceCPU: resource.MustParse("32")},
				Limits:   corev1.ResourceList{gpu: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("256Gi")},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "workspace",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "ml-dev-workspace"}}},
			{Name: "datasets",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "ml-dev-datasets"}}},
		},
		Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
		Affinity:    onNodes("node-1", "node-2"),
	}
	return Snapshot{
		StatefulSet: &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: env, Namespace: space, UID: "set", CreationTimestamp: ago(10 * time.Minute)},
			Spec:       appsv1.StatefulSetSpec{Replicas: &n, Template: corev1.PodTemplateSpec{Spec: spec}},
		},
		Classes: []storagev1.StorageClass{
			{ObjectMeta: metav1.ObjectMeta{Name: "nfs-csi"}, Provisioner: "nfs.csi.k8s.io",
				Parameters: map[string]string{"server": "nfs-server.nfs.svc.cluster.local", "share": "/"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "ocs-external-storagecluster-ceph-rbd"}, Provisioner: "openshift-storage.rbd.csi.ceph.com"},
		},
	}
}

func onNodes(names ...string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names},
		}}},
	}}}
}

// pod adds the environment's pod with that number, as changed by changes.
func (s *Snapshot) pod(number int, changes ...func(*corev1.Pod)) {
	name := fmt.Sprintf("%s-%d", env, number)
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: space, UID: types.UID(name),
			Labels: map[string]string{objects.EnvironmentLabel: env}},
		Spec:   *s.StatefulSet.Spec.Template.Spec.DeepCopy(),
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, change := range changes {
		change(&p)
	}
	s.Pods = append(s.Pods, p)
}

// withPods returns an environment with all its pods, as changed by changes.
func withPods(n int32, changes ...func(*corev1.Pod)) Snapshot {
	s := snapshotOf(n)
	for i := range int(n) {
		s.pod(i, changes...)
	}
	return s
}

// on puts a pod on a node: pod 0 has node-1.
func on(p *corev1.Pod) {
	n := p.Name[len(p.Name)-1] - '0' + 1
	p.Spec.NodeName = fmt.Sprintf("node-%d", n)
}

func isReady(p *corev1.Pod) {
	on(p)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "train", Image: image, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(time.Minute)}},
	}}
}

// withRail makes a pod request a virtual function.
func withRail(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Limits["openshift.io/eno5np0rdma"] = resource.MustParse("1")
}

// unschedulable gives a pod the scheduler's message.
func unschedulable(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: text, LastTransitionTime: ago(40 * time.Second),
		})
	}
}

// waiting makes the pod's training container wait for this reason.
func waiting(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		on(p)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "train", Image: image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}
	}
}

// crashed makes the pod's container end; the kubelet is about to restart it.
func crashed(restarts int32, t corev1.ContainerStateTerminated) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		waiting("CrashLoopBackOff", "back-off 40s restarting failed container=train pod="+p.Name+"_nccl-test(uid)")(p)
		t.FinishedAt = ago(20 * time.Second)
		p.Status.ContainerStatuses[0].RestartCount = restarts
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &t
	}
}

// event adds an event about an object of the namespace. It is a minute old and was last seen ten seconds ago.
func (s *Snapshot) event(kind, name, reason, text string) {
	uid := types.UID(name)
	if kind == "StatefulSet" {
		uid = "set"
	}
	s.Events = append(s.Events, corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, Namespace: space, UID: uid},
		Reason:         reason, Message: text,
		FirstTimestamp: ago(time.Minute), LastTimestamp: ago(10 * time.Second),
		Source: corev1.EventSource{Host: "node-1"},
	})
}

// with adds an event about every existing pod.
func (s Snapshot) with(reason, text string) Snapshot {
	for _, p := range s.Pods {
		s.event("Pod", p.Name, reason, text)
	}
	return s
}

// refusedBy returns an environment whose pods the API server refuses.
func refusedBy(n int32, text string) Snapshot {
	s := snapshotOf(n)
	for i := range int(n) {
		name := fmt.Sprintf("%s-%d", env, i)
		s.event("StatefulSet", env, "FailedCreate", fmt.Sprintf("create Pod %s in StatefulSet %s failed error: pods %q is forbidden: %s", name,
			env, name, text))
	}
	return s
}

// rejectedBy returns an environment of one pod, and the API server's message about it.
func rejectedBy(text string) Snapshot {
	s := snapshotOf(1)
	s.event("StatefulSet", env, "FailedCreate", "create Pod ml-dev-env-0 in StatefulSet ml-dev-env failed error: "+text)
	return s
}

// node adds a healthy node with GPUs, as changed by changes.
func (s Snapshot) node(name, gpus string, changes ...func(*corev1.Node)) Snapshot {
	amounts := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64")}
	if gpus != "0" {
		amounts[gpu] = resource.MustParse(gpus)
	}
	n := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Capacity: amounts, Allocatable: amounts.DeepCopy(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{Architecture: "arm64"},
		},
	}
	for _, change := range changes {
		change(&n)
	}
	s.Nodes = append(s.Nodes, n)
	return s
}

func taint(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
}

// holds adds another user's pod that has GPUs of a node.
func (s Snapshot) holds(namespace, name, node, gpus string, labels map[string]string) Snapshot {
	s.AllPods = true
	s.OtherPods = append(s.OtherPods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse(gpus)}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	})
	return s
}

// claim adds a Pending claim. The class "-" means that the claim names none.
func (s Snapshot) claim(namespace, name, class string) Snapshot {
	c := corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name), CreationTimestamp: ago(2 * time.Minute)},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	if class != "-" {
		c.Spec.StorageClassName = &class
	}
	s.Claims = append(s.Claims, c)
	return s
}

// serverClaim adds the NFS server's own claim, which names no class.
func (s Snapshot) serverClaim() Snapshot {
	s = s.claim("nfs", "nfs-server-root", "-")
	s.Claims[len(s.Claims)-1].Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return s
}

// queued makes the environment wait in a queue, with the event of its Workload.
func (s Snapshot) queued(position int, workload, text string) Snapshot {
	s.QueuePosition = position
	s.event("Workload", workload, "Pending", text)
	s.Events[len(s.Events)-1].Type = corev1.EventTypeWarning
	return s
}

// says adds an event about a claim.
func (s Snapshot) says(claim, reason, text string) Snapshot {
	s.event("PersistentVolumeClaim", claim, reason, text)
	return s
}
