// SPDX-License-Identifier: Apache-2.0

package scc

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func stocked(t *testing.T) []*securityv1.SecurityContextConstraints {
	t.Helper()
	all, err := Stock()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func namespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Annotations: map[string]string{
		securityv1.UIDRangeAnnotation:           "1000650000/10000",
		securityv1.SupplementalGroupsAnnotation: "1000660000/10000",
		securityv1.MCSAnnotation:                "s0:c26,c5",
	}}}
}

// may lets the service account use these constraints.
func may(names ...string) func(context.Context, *securityv1.SecurityContextConstraints) (Subject, error) {
	return func(_ context.Context, c *securityv1.SecurityContextConstraints) (Subject, error) {
		if slices.Contains(names, c.Name) {
			return ServiceAccount, nil
		}
		return Nobody, nil
	}
}

// everything lets the user use all constraints, like a cluster's administrator.
func everything(context.Context, *securityv1.SecurityContextConstraints) (Subject, error) {
	return User, nil
}

// TestSort tests the order in which OpenShift 4.20 and 4.21 name their own constraints in refusals. The points of
// pipelines-scc and nccl-scc define their places.
func TestSort(t *testing.T) {
	all := stocked(t)
	Sort(all)
	var got []string
	for _, c := range all {
		got = append(got, c.Name)
	}
	want := []string{
		"anyuid", "pipelines-scc", "restricted-v2", "restricted-v3", "restricted", "nested-container", "nonroot-v2", "nonroot",
		"nccl-scc", "hostmount-anyuid", "hostmount-anyuid-v2", "hostnetwork-v2", "hostnetwork", "hostaccess", "privileged",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func container(sc *corev1.SecurityContext) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", SecurityContext: sc}}}
}

func adds(capabilities ...corev1.Capability) corev1.PodSpec {
	return container(&corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: capabilities}})
}

func pod(spec corev1.PodSpec, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}
	if len(annotations) > 0 {
		p.Annotations = map[string]string{annotations[0]: annotations[1]}
	}
	return p
}

func withVolume(source corev1.VolumeSource) corev1.PodSpec {
	spec := container(nil)
	spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
	return spec
}

func TestChoose(t *testing.T) {
	hostNetwork := container(nil)
	hostNetwork.HostNetwork = true
	hostPath := withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/sys"}})
	root := container(&corev1.SecurityContext{RunAsUser: new(int64(0))})
	fixed := container(&corev1.SecurityContext{RunAsUser: new(int64(1001))})
	privileged := container(&corev1.SecurityContext{Privileged: new(true)})
	profiled := container(nil)
	profiled.SecurityContext = &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	pinned := func(name string) []string { return []string{securityv1.RequiredSCCAnnotation, name} }
	tests := []struct {
		name        string
		spec        corev1.PodSpec
		annotations []string
		may         func(context.Context, *securityv1.SecurityContextConstraints) (Subject, error)
		want        string
	}{
		{"everybody's", container(nil), nil, may("restricted-v2"), "restricted-v2"},
		{"an administrator's has the highest priority", container(nil), nil, everything, "anyuid"},
		{"the most restrictive that may be used", container(nil), nil, may("privileged", "nonroot", "restricted-v2"), "restricted-v2"},
		{"by name among equals", container(nil), nil, may("restricted-v2", "restricted-v3"), "restricted-v2"},
		{"root", root, nil, everything, "anyuid"},
		{"a fixed user", fixed, nil, may("restricted-v2", "nonroot-v2"), "nonroot-v2"},
		{"privileged", privileged, nil, everything, "privileged"},
		{"host network", hostNetwork, nil, everything, "hostnetwork-v2"},
		{"host path", hostPath, nil, everything, "hostmount-anyuid"},
		{"IPC_LOCK", adds("IPC_LOCK"), nil, may("restricted-v2", "nccl-scc", "privileged"), "nccl-scc"},
		{"SYS_RESOURCE", adds("IPC_LOCK", "SYS_RESOURCE"), nil, may("restricted-v2", "nccl-scc", "privileged"), "privileged"},
		{"NET_BIND_SERVICE", adds("NET_BIND_SERVICE"), nil, may("restricted-v2", "privileged"), "restricted-v2"},
		{"a profile, which anyuid does not take", profiled, nil, everything, "restricted-v2"},
		{"a pipeline's", root, nil, may("restricted-v2", "pipelines-scc"), "pipelines-scc"},
		{"pinned", container(nil), pinned("privileged"), everything, "privileged"},
		{"pinned to less", container(nil), pinned("restricted-v2"), everything, "restricted-v2"},
	}
	for _, test := range tests {
		answer, err := Choose(t.Context(), Question{Pod: pod(test.spec, test.annotations...), Namespace: namespace(), Constraints: stocked(t),
			May: test.may})
		if err != nil || answer.Name != test.want {
			t.Errorf("%s: %q (%v), want %q", test.name, answer.Name, err, test.want)
		}
	}
}

func TestChooseRefuses(t *testing.T) {
	greedy := adds("IPC_LOCK")
	greedy.HostPID = true
	host := container(nil)
	host.HostNetwork, host.HostIPC = true, true
	host.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	hostPath := withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/sys"}})
	group := container(&corev1.SecurityContext{RunAsUser: new(int64(2000))})
	group.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(2000)), SELinuxOptions: &corev1.SELinuxOptions{Level: "s0:c1,c2"}}
	init := container(nil)
	init.InitContainers = []corev1.Container{
		{SecurityContext: &corev1.SecurityContext{Privileged: new(true), AllowPrivilegeEscalation: new(true)}}}
	profile := container(&corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}})
	const prefix = "unable to validate against any security context constraint: "
	others := func(names ...string) (text string) {
		for _, name := range names {
			text += `, provider "` + name + `": Forbidden: not usable by user or serviceaccount`
		}
		return text
	}
	const anyuid = prefix + `[provider "anyuid": Forbidden: not usable by user or serviceaccount, provider "pipelines-scc": Forbidden: not ` +
		`usable by user or serviceaccount, `
	rest := others("restricted-v3", "restricted", "nested-container", "nonroot-v2", "nonroot", "nccl-scc", "hostmount-anyuid",
		"hostmount-anyuid-v2", "hostnetwork-v2", "hostnetwork", "hostaccess", "privileged") + "]"
	tests := []struct {
		name        string
		spec        corev1.PodSpec
		annotations []string
		may         []string
		want        string
	}{
		{
			"a capability, of everybody", greedy, nil, []string{"restricted-v2"},
			anyuid + `provider restricted-v2: .spec.securityContext.hostPID: Invalid value: true: Host PID is not allowed to be used, ` +
				`provider restricted-v2: .containers[0].capabilities.add: Invalid value: "IPC_LOCK": capability may not be added, ` +
				`provider restricted-v2: .containers[0].hostPID: Invalid value: true: Host PID is not allowed to be used` + rest,
		},
		{
			"the host, pinned", host, []string{securityv1.RequiredSCCAnnotation, "restricted-v2"}, []string{"restricted-v2", "privileged"},
			prefix + `[provider restricted-v2: .spec.securityContext.hostNetwork: Invalid value: true: Host network is not allowed to be used, ` +
				`provider restricted-v2: .spec.securityContext.hostIPC: Invalid value: true: Host IPC is not allowed to be used, ` +
				`provider restricted-v2: .containers[0].hostNetwork: Invalid value: true: Host network is not allowed to be used, ` +
				`provider restricted-v2: .containers[0].containers[0].hostPort: Invalid value: 80: Host ports are not allowed to be used, ` +
				`provider restricted-v2: .containers[0].hostIPC: Invalid value: true: Host IPC is not allowed to be used]`,
		},
		{
			"a folder of the host, with one reason only", hostPath, []string{securityv1.RequiredSCCAnnotation, "nccl-scc"}, []string{"nccl-scc"},
			prefix + `spec.volumes[0]: Invalid value: "hostPath": hostPath volumes are not allowed to be used`,
		},
		{
			"IDs", group, []string{securityv1.RequiredSCCAnnotation, "restricted-v2"}, []string{"restricted-v2"},
			prefix + `[provider restricted-v2: .spec.securityContext.fsGroup: Invalid value: [2000]: 2000 is not an allowed group, ` +
				`provider restricted-v2: .spec.securityContext.seLinuxOptions.level: Invalid value: "s0:c1,c2": must be s0:c26,c5, ` +
				`provider restricted-v2: .containers[0].runAsUser: Invalid value: 2000: must be in the ranges: [1000650000, 1000659999], ` +
				`provider restricted-v2: .containers[0].seLinuxOptions.level: Invalid value: "s0:c1,c2": must be s0:c26,c5]`,
		},
		{
			"an init container", init, []string{securityv1.RequiredSCCAnnotation, "restricted-v2"}, []string{"restricted-v2"},
			prefix + `[provider restricted-v2: .initContainers[0].privileged: Invalid value: true: Privileged containers are not allowed, ` +
				`provider restricted-v2: .initContainers[0].allowPrivilegeEscalation: Invalid value: true: Allowing privilege escalation for ` +
				`containers is not allowed]`,
		},
		{
			"SYS_RESOURCE under nccl-scc", adds("IPC_LOCK", "SYS_RESOURCE"), []string{securityv1.RequiredSCCAnnotation, "nccl-scc"},
			[]string{"nccl-scc"},
			prefix + `provider nccl-scc: .containers[0].capabilities.add: Invalid value: "SYS_RESOURCE": capability may not be added`,
		},
		{
			"a profile", profile, []string{securityv1.RequiredSCCAnnotation, "restricted-v2"}, []string{"restricted-v2"},
			prefix + `pod.metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: Forbidden: unconfined is not an allowed seccomp ` +
				`profile. Valid values are [runtime/default]`,
		},
		{
			"a profile where none may be set", profile, []string{securityv1.RequiredSCCAnnotation, "anyuid"}, []string{"anyuid"},
			prefix + `pod.metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: Forbidden: seccomp may not be set`,
		},
		{
			"a profile of the whole pod under nccl-scc",
			corev1.PodSpec{
				SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}},
			[]string{securityv1.RequiredSCCAnnotation, "nccl-scc"}, []string{"nccl-scc"},
			prefix + `pod.metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: Forbidden: seccomp may not be set`,
		},
		{
			"a user namespace", container(nil), []string{securityv1.RequiredSCCAnnotation, "restricted-v3"}, []string{"restricted-v3"},
			prefix + `provider restricted-v3: .spec.securityContext.hostUsers: Invalid value: null: Host Users must be set to false`,
		},
		{
			"pinned to what may not be used", container(nil), []string{securityv1.RequiredSCCAnnotation, "nccl-scc"}, []string{"restricted-v2"},
			prefix + `provider "nccl-scc": Forbidden: not usable by user or serviceaccount`,
		},
		{
			"pinned to nothing", container(nil), []string{securityv1.RequiredSCCAnnotation, "nccl"}, []string{"restricted-v2"},
			`failed to retrieve the required SCC "nccl": securitycontextconstraints.security.openshift.io "nccl" not found`,
		},
		{
			"what the older would admit", container(&corev1.SecurityContext{AllowPrivilegeEscalation: new(true)}), nil, []string{"restricted-v2"},
			anyuid + `provider restricted-v2: .containers[0].allowPrivilegeEscalation: Invalid value: true: Allowing privilege escalation for ` +
				`containers is not allowed` +
				strings.TrimSuffix(rest, "]") + ", no access to scc/restricted: Forbidden: the pod fails to validate against the `restricted-v2` " +
				"security context constraint, " +
				"but would validate successfully against the `restricted` security context constraint]",
		},
	}
	for _, test := range tests {
		answer, err := Choose(t.Context(), Question{Pod: pod(test.spec, test.annotations...), Namespace: namespace(), Constraints: stocked(t),
			May: may(test.may...)})
		if err == nil {
			t.Errorf("%s: admitted with %s", test.name, answer.Name)
			continue
		}
		if diff := cmp.Diff(test.want, err.Error()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestChooseDefaults(t *testing.T) {
	spec := container(&corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)})
	spec.InitContainers = []corev1.Container{{Name: "i"}}
	level := &corev1.SELinuxOptions{Level: "s0:c26,c5"}
	none := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
	tests := []struct {
		name, scc       string
		pod             *corev1.PodSecurityContext
		init, container *corev1.SecurityContext
	}{
		{
			"restricted-v2's", "restricted-v2",
			&corev1.PodSecurityContext{FSGroup: new(int64(1000660000)), SELinuxOptions: level,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			&corev1.SecurityContext{RunAsUser: new(int64(1000650000)), RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false),
				Capabilities: none},
			&corev1.SecurityContext{RunAsUser: new(int64(1000650000)), RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false),
				Capabilities: none, ReadOnlyRootFilesystem: new(true)},
		},
		{
			"anyuid's", "anyuid",
			&corev1.PodSecurityContext{SELinuxOptions: level},
			&corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"MKNOD"}}},
			&corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"MKNOD"}}, ReadOnlyRootFilesystem: new(true)},
		},
		{
			"hostnetwork's", "hostnetwork",
			&corev1.PodSecurityContext{FSGroup: new(int64(1000660000)), SELinuxOptions: level, SupplementalGroups: []int64{1000660000}},
			&corev1.SecurityContext{RunAsUser: new(int64(1000650000)), RunAsNonRoot: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"KILL", "MKNOD", "SETGID", "SETUID"}}},
			&corev1.SecurityContext{RunAsUser: new(int64(1000650000)), RunAsNonRoot: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"KILL", "MKNOD", "SETGID", "SETUID"}}, ReadOnlyRootFilesystem: new(true)},
		},
		{"nonroot's", "nonroot", &corev1.PodSecurityContext{SELinuxOptions: level},
			&corev1.SecurityContext{RunAsNonRoot: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"KILL", "MKNOD", "SETGID", "SETUID"}}},
			&corev1.SecurityContext{RunAsNonRoot: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"KILL", "MKNOD", "SETGID", "SETUID"}}, ReadOnlyRootFilesystem: new(true)}},
		{"privileged gives nothing", "privileged", nil, nil, &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)}},
	}
	for _, test := range tests {
		question := Question{Pod: pod(spec), Namespace: namespace(), Constraints: stocked(t), May: may(test.scc)}
		answer, err := Choose(t.Context(), question)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got := answer.Pod.Spec
		if diff := cmp.Diff([]any{test.pod, test.init, test.container}, []any{got.SecurityContext, got.InitContainers[0].SecurityContext,
			got.Containers[0].SecurityContext}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		again := question
		again.Pod, again.Unchanged = answer.Pod, true
		if second, err := Choose(t.Context(), again); err != nil || second.Name != test.scc {
			t.Errorf("%s, checked again: %s, %v", test.name, second.Name, err)
		}
		again.Pod = question.Pod
		if _, err := Choose(t.Context(), again); err == nil && test.scc != "privileged" {
			t.Errorf("%s: a pod without the defaults passed without a change", test.name)
		}
	}
}

func TestAStampIsTriedFirst(t *testing.T) {
	question := Question{Pod: pod(container(nil), securityv1.ValidatedSCCAnnotation, "privileged"), Namespace: namespace(),
		Constraints: stocked(t), May: everything, Unchanged: true}
	if answer, err := Choose(t.Context(), question); err != nil || answer.Name != "privileged" {
		t.Errorf("%s, %v, want privileged", answer.Name, err)
	}
}

func TestAnIncompleteConstraintKeepsEverybodyOut(t *testing.T) {
	broken := &securityv1.SecurityContextConstraints{ObjectMeta: metav1.ObjectMeta{Name: "broken"}}
	broken.RunAsUser.Type, broken.SELinuxContext.Type = securityv1.RunAsUserStrategyMustRunAs, securityv1.SELinuxStrategyRunAsAny
	question := Question{Pod: pod(container(nil)), Namespace: namespace(), Constraints: append(stocked(t), broken), May: everything}
	want := "error creating provider for SCC broken in namespace team: MustRunAs requires a UID"
	if _, err := Choose(t.Context(), question); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	broken.RunAsUser = securityv1.RunAsUserStrategyOptions{}
	if _, err := Choose(t.Context(), question); err == nil || !strings.HasSuffix(err.Error(), "Unrecognized RunAsUser strategy type ") {
		t.Errorf("without a strategy: %v", err)
	}
}

func TestTheHostsFoldersHaveASwitch(t *testing.T) {
	hostPath := withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/sys"}})
	for _, allowed := range []bool{true, false} {
		constraints := stocked(t)
		for _, c := range constraints {
			if c.Name == "nccl-scc" {
				c.AllowHostDirVolumePlugin = allowed
				c.Volumes = []securityv1.FSType{securityv1.FSTypeSecret}
				if !allowed {
					c.Volumes = append(c.Volumes, securityv1.FSTypeHostPath)
				}
			}
		}
		question := Question{Pod: pod(hostPath), Namespace: namespace(), Constraints: constraints, May: may("nccl-scc")}
		if _, err := Choose(t.Context(), question); (err == nil) != allowed {
			t.Errorf("allowHostDirVolumePlugin %v: %v", allowed, err)
		}
	}
}

func TestNamespacesWithoutIDs(t *testing.T) {
	for annotation, want := range map[string]string{
		securityv1.UIDRangeAnnotation: `error fetching namespace "team": unable to find annotation openshift.io/sa.scc.uid-range`,
		securityv1.MCSAnnotation:      `error fetching namespace "team": unable to find annotation openshift.io/sa.scc.mcs`,
	} {
		ns := namespace()
		delete(ns.Annotations, annotation)
		if _, err := Choose(t.Context(), Question{Pod: pod(container(nil)), Namespace: ns, Constraints: stocked(t),
			May: everything}); err == nil || err.Error() != want {
			t.Errorf("without %s: %v, want %s", annotation, err, want)
		}
	}
}

func TestParseBlock(t *testing.T) {
	for text, want := range map[string]securityv1.IDRange{
		"1000650000/10000":      {Min: 1000650000, Max: 1000659999},
		"1000650000-1000650009": {Min: 1000650000, Max: 1000650009},
		"1000650000":            {}, "a/1": {}, "5/b": {}, "9-1": {}, "5/0": {}, "": {},
	} {
		got, err := ParseBlock(text)
		if got != want || (err == nil) != (want.Max > 0) {
			t.Errorf("ParseBlock(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestVolumeKind(t *testing.T) {
	token := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}
	other := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{}}}}
	onlySecrets := &securityv1.SecurityContextConstraints{Volumes: []securityv1.FSType{securityv1.FSTypeSecret}}
	tests := []struct {
		source  corev1.VolumeSource
		want    securityv1.FSType
		allowed bool
	}{
		{corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, securityv1.FSTypeSecret, true},
		{corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}, securityv1.FSTypePersistentVolumeClaim, false},
		{corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{}}, securityv1.FSTypeCephFS, false},
		{corev1.VolumeSource{Projected: token}, securityv1.FSProjected, true},
		{corev1.VolumeSource{Projected: other}, securityv1.FSProjected, false},
	}
	for _, test := range tests {
		if got := volumeKind(test.source); got != test.want {
			t.Errorf("volumeKind = %q, want %q", got, test.want)
		}
		if errs := checkVolumes(onlySecrets, []corev1.Volume{{VolumeSource: test.source}}); (len(errs) == 0) != test.allowed {
			t.Errorf("%s: %v, want allowed: %v", test.want, errs, test.allowed)
		}
	}
}
