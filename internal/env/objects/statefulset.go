// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// statefulSet has one pod per node. Applying it never ends a pod: a changed template waits until pods are deleted.
func (b builder) statefulSet() *appsv1.StatefulSet {
	set := &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
		ObjectMeta: b.ownedMeta(b.names.StatefulSet),
		Spec: appsv1.StatefulSetSpec{
			Replicas:            new(int32(b.Nodes)),
			ServiceName:         b.names.Service,
			Selector:            &metav1.LabelSelector{MatchLabels: names.Selector(b.Name)},
			PodManagementPolicy: appsv1.ParallelPodManagement,
			UpdateStrategy:      appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
				WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: Labels(b.Name), Annotations: b.podAnnotations()},
				Spec:       b.pod(),
			},
		},
	}
	set.Annotations = map[string]string{ModeAnnotation: string(b.Mode)}
	if b.Queue != "" {
		set.Labels[kueue.QueueLabel] = b.Queue
	}
	if b.QueuePriority != "" {
		set.Labels[kueue.PriorityLabel] = b.QueuePriority
	}
	if b.RackLevel != "" {
		metav1.SetMetaDataAnnotation(&set.Spec.Template.ObjectMeta, kueue.TopologyAnnotation, b.RackLevel)
	}
	if b.Storage == cluster.NodeStorage {
		for _, m := range b.Mounts() {
			set.Spec.VolumeClaimTemplates = append(set.Spec.VolumeClaimTemplates,
				b.buildClaim(m.Volume, m.Size, corev1.ReadWriteOnce, b.Cluster.Storage.ClassRWO))
		}
	}
	return set
}

// pod is one that OpenShift's restricted-v2 admits in mode agent.TCP: which user it runs as is left to the cluster.
func (b builder) pod() corev1.PodSpec {
	spec := corev1.PodSpec{
		ServiceAccountName:            b.Cluster.Security.ServiceAccount,
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: new(int64(math.Ceil(b.stopGrace().Seconds()))),
		SecurityContext:               b.podSecurity(),
		Affinity:                      b.affinity(),
		Tolerations:                   b.tolerations(),
		InitContainers:                []corev1.Container{b.agentContainer()},
		Containers:                    []corev1.Container{b.trainContainer()},
		Volumes:                       b.volumes(),
	}
	Exclude(&spec, b.ExcludeNodes...)
	if b.Mode == agent.RDMA && b.Cluster.Network.RDMA.HostNetwork {
		spec.HostNetwork, spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
	}
	if secret := b.Cluster.Image.PullSecret; secret != "" {
		spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
	}
	return spec
}

// affinity puts each node of the environment on another of the Kubernetes nodes that the cluster file lists; their order in
// the file makes no difference.
func (b builder) affinity() *corev1.Affinity {
	affinity := &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: names.Selector(b.Name)},
			TopologyKey:   corev1.LabelHostname,
		}},
	}}
	if nodes := b.Cluster.Nodes.GPUNodes; len(nodes) > 0 {
		affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
					Values: slices.Sorted(slices.Values(nodes))}},
			}},
		}}
	}
	return affinity
}

// Exclude keeps pods of an environment away from Kubernetes nodes, and removes these from the nodes that the pods may use.
func Exclude(spec *corev1.PodSpec, names ...string) {
	if len(names) == 0 {
		return
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: make([]corev1.NodeSelectorTerm, 1)}}
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		term := &terms[i]
		for j := range term.MatchExpressions {
			allowed := &term.MatchExpressions[j].Values
			*allowed = slices.DeleteFunc(slices.Clone(*allowed), func(name string) bool { return slices.Contains(names, name) })
		}
		for _, name := range names { // the API server refuses a field with several values
			term.MatchFields = append(term.MatchFields, corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField,
				Operator: corev1.NodeSelectorOpNotIn, Values: []string{name}})
		}
	}
}

// MayExclude returns nil if an environment of so many nodes can do without a Kubernetes node that it uses.
func MayExclude(set *appsv1.StatefulSet, host string, nodes int) error {
	allowed, _ := Placement(&set.Spec.Template.Spec)
	switch left := len(allowed) - 1; {
	case len(set.Spec.VolumeClaimTemplates) > 0:
		return errors.New("the claims of its pod may exist only on this node")
	case set.Labels[kueue.QueueLabel] != "":
		return errors.New("its queue is Kueue's, which refuses changes of the pods that it has admitted")
	case !slices.Contains(allowed, host):
		return errors.New("nodes.gpu_nodes of the cluster file does not list it, so the other nodes are not known")
	case left < nodes:
		return fmt.Errorf("without it nodes.gpu_nodes of the cluster file leaves %s, want %d", humanize.Count(left, "node"), nodes)
	}
	return nil
}

func (r Request) stopGrace() time.Duration {
	return cmp.Or(r.StopGrace, time.Duration(r.Cluster.Nodes.StopGrace), agent.DefaultStopGrace)
}

// StopGraceOf returns how long the ranks of an environment have to save when their pods end.
func StopGraceOf(set *appsv1.StatefulSet) time.Duration {
	return time.Duration(*cmp.Or(set.Spec.Template.Spec.TerminationGracePeriodSeconds, new(int64(0)))) * time.Second
}

// NodesOf returns the number of nodes of an environment.
func NodesOf(set *appsv1.StatefulSet) int { return int(*cmp.Or(set.Spec.Replicas, new(int32(1)))) }

// Placement returns the Kubernetes nodes that pods of an environment may use, nil for any with GPUs, and those that Exclude
// excluded.
func Placement(spec *corev1.PodSpec) (allowed, excluded []string) {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, r := range term.MatchExpressions {
			allowed = append(allowed, r.Values...)
		}
		for _, r := range term.MatchFields {
			excluded = append(excluded, r.Values...)
		}
	}
	return allowed, excluded
}

// tolerations returns the cluster file's tolerations, and one for the usual taint of GPU nodes.
func (b builder) tolerations() []corev1.Toleration {
	tolerations := []corev1.Toleration{{Key: gpuResource, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	for _, t := range b.Cluster.Nodes.Tolerations {
		operator := cmp.Or(corev1.TolerationOperator(t.Operator), corev1.TolerationOpEqual)
		toleration := corev1.Toleration{Key: t.Key, Operator: operator, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
		if toleration != tolerations[0] {
			tolerations = append(tolerations, toleration)
		}
	}
	return tolerations
}
