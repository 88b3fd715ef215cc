// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/test/kubelet"
)

func TestNames(t *testing.T) {
	tests := []struct {
		name string
		want names.Names
	}{
		{DefaultName, names.Names{
			Name: "ml-dev-env", StatefulSet: "ml-dev-env", Service: "ml-dev-env-headless", Workspace: "ml-dev-workspace",
			Datasets: "ml-dev-datasets",
			Lease:    "ml-dev-env", ServerSecret: "ml-dev-env-agent-server", ClientSecret: "ml-dev-env-agent-client",
			MetricsSecret: "ml-dev-env-agent-metrics", PodMonitor: "ml-dev-env", UseConfig: "ml-dev-env-agent-use",
			NodeZero: "ml-dev-env", ServicesSecret: "ml-dev-env-services",
		}},
		{"ml-dev-env-h-kim", names.Names{ // with the claims of the default environment
			Name: "ml-dev-env-h-kim", StatefulSet: "ml-dev-env-h-kim", Service: "ml-dev-env-h-kim-headless", Workspace: "ml-dev-workspace",
			Datasets: "ml-dev-datasets",
			Lease:    "ml-dev-env-h-kim", ServerSecret: "ml-dev-env-h-kim-agent-server", ClientSecret: "ml-dev-env-h-kim-agent-client",
			MetricsSecret: "ml-dev-env-h-kim-agent-metrics", PodMonitor: "ml-dev-env-h-kim", UseConfig: "ml-dev-env-h-kim-agent-use",
			NodeZero: "ml-dev-env-h-kim", ServicesSecret: "ml-dev-env-h-kim-services",
		}},
		{"h-kim", names.Names{
			Name: "h-kim", StatefulSet: "h-kim", Service: "h-kim-headless", Workspace: "h-kim-workspace", Datasets: "h-kim-datasets",
			Lease: "h-kim", ServerSecret: "h-kim-agent-server", ClientSecret: "h-kim-agent-client",
			MetricsSecret: "h-kim-agent-metrics", PodMonitor: "h-kim", UseConfig: "h-kim-agent-use",
			NodeZero: "h-kim", ServicesSecret: "h-kim-services",
		}},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, names.Of("", test.name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	if got, want := names.Of("ns", "h-kim").TLSName(3), "h-kim-3.h-kim-headless.ns.svc"; got != want {
		t.Errorf("TLSName = %s, want %s", got, want)
	}
	if !names.Selector("h-kim").AsSelector().Matches(labels.Set(Labels("h-kim"))) {
		t.Error("an environment's selector does not find its own objects")
	}
	if names.Selector("h-kim").AsSelector().Matches(labels.Set(Labels("ml-dev-env"))) {
		t.Error("an environment's selector finds another environment's objects")
	}
}

// pod returns the pod of a request, and its container.
func pod(t *testing.T, r Request) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	spec := build(t, r).StatefulSet.Spec.Template.Spec
	return spec, spec.Containers[0]
}

func environ(container corev1.Container) map[string]string {
	vars := map[string]string{}
	for _, v := range container.Env {
		vars[v.Name] = v.Value
		if v.ValueFrom != nil {
			vars[v.Name] = "<" + v.ValueFrom.FieldRef.FieldPath + ">"
		}
	}
	return vars
}

func TestCountsAndResourcesArrive(t *testing.T) {
	r := request(t, "barcelona")
	r.Nodes, r.GPUsPerNode = 3, new(2)
	set := build(t, r).StatefulSet
	if got := *set.Spec.Replicas; got != 3 {
		t.Errorf("replicas %d, want 3", got)
	}
	_, container := pod(t, r)
	for where, list := range map[string]corev1.ResourceList{"requests": container.Resources.Requests, "limits": container.Resources.Limits} {
		got := map[string]string{}
		for name, q := range list {
			got[string(name)] = q.String()
		}
		want := map[string]string{"cpu": "32", "memory": "128Gi", "nvidia.com/gpu": "2"}
		if where == "limits" {
			want = map[string]string{"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "2"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", where, diff)
		}
	}
	vars := environ(container)
	for name, want := range map[string]string{"NUM_NODES": "3", "GPUS_PER_NODE": "2", "WORLD_SIZE": "6"} {
		if vars[name] != want {
			t.Errorf("%s=%s, want %s", name, vars[name], want)
		}
	}
}

func TestDefaultsComeFromTheFile(t *testing.T) {
	r := request(t, "local")
	r.Image, r.Cluster.Image = "", cluster.Image{Name: "10.223.0.2:5000/training:latest"}
	objects := build(t, r)
	_, container := pod(t, r)
	gpus := container.Resources.Limits[gpuResource]
	if *objects.StatefulSet.Spec.Replicas != 2 || gpus.Value() != 4 || container.Image != "10.223.0.2:5000/training:latest" ||
		len(objects.Claims) != 2 {
		t.Errorf("replicas %d, GPUs %d, image %s, claims %d", *objects.StatefulSet.Spec.Replicas, gpus.Value(), container.Image,
			len(objects.Claims))
	}
}

func TestPlacement(t *testing.T) {
	r := request(t, "cairo")
	r.Cluster.Nodes.Tolerations = []cluster.Toleration{
		{Key: "nairr", Value: "yes", Effect: "NoExecute"},
		{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"},
		{Operator: "Exists"},
	}
	spec, _ := pod(t, r)
	nodes := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "kubernetes.io/hostname", Operator: "In", Values: []string{"moc-r4pcc02u15", "moc-r4pcc02u16"}},
	}}}
	if diff := cmp.Diff(want, nodes); diff != "" {
		t.Errorf("node affinity (-want +got):\n%s", diff)
	}
	apart := spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	wantApart := []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: names.Selector(DefaultName)}, TopologyKey: "kubernetes.io/hostname",
	}}
	if diff := cmp.Diff(wantApart, apart); diff != "" {
		t.Errorf("anti-affinity (-want +got):\n%s", diff)
	}
	wantTolerations := []corev1.Toleration{
		{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"},
		{Key: "nairr", Operator: "Equal", Value: "yes", Effect: "NoExecute"},
		{Operator: "Exists"},
	}
	if diff := cmp.Diff(wantTolerations, spec.Tolerations); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}

	r = request(t, "nerc-production")
	if spec, _ := pod(t, r); spec.Affinity.NodeAffinity != nil {
		t.Errorf("without gpu_nodes: node affinity %v, want none", spec.Affinity.NodeAffinity)
	}

	excluded := func(name string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "NotIn", Values: []string{name}}
	}
	for file, want := range map[string]corev1.NodeSelectorTerm{
		"nerc-production": {MatchFields: []corev1.NodeSelectorRequirement{excluded("wrk-97"), excluded("moc-r4pcc02u15")}},
		"cairo": {
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: "In", Values: []string{"moc-r4pcc02u16"}}},
			MatchFields:      []corev1.NodeSelectorRequirement{excluded("moc-r4pcc02u15")},
		},
	} {
		r := request(t, file)
		r.Nodes, r.ExcludeNodes = 1, nil
		for _, field := range want.MatchFields {
			r.ExcludeNodes = append(r.ExcludeNodes, field.Values...)
		}
		spec, _ := pod(t, r)
		if diff := cmp.Diff([]corev1.NodeSelectorTerm{want},
			spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms); diff != "" {
			t.Errorf("%s: node affinity with excluded nodes (-want +got):\n%s", file, diff)
		}
	}
}

func TestStorage(t *testing.T) {
	type claim struct{ Class, Access, Size, MountedAt string }
	tests := []struct {
		mode cluster.StorageMode
		want map[string]claim
	}{
		{cluster.SharedStorage, map[string]claim{
			"ml-dev-workspace": {"nfs-csi", "ReadWriteMany", "1Ti", "/workspace"},
			"ml-datasets":      {"nfs-csi", "ReadWriteMany", "500Gi", "/datasets"},
		}},
		{cluster.NodeStorage, map[string]claim{
			"ml-dev-workspace": {"ocs-external-storagecluster-ceph-rbd", "ReadWriteOnce", "1Ti", "/workspace"},
			"ml-dev-datasets":  {"ocs-external-storagecluster-ceph-rbd", "ReadWriteOnce", "500Gi", "/datasets"},
		}},
	}
	for _, test := range tests {
		t.Run(string(test.mode), func(t *testing.T) {
			r := request(t, "cairo")
			r.Storage, r.WorkspaceSize = test.mode, "1Ti"
			objects := build(t, r)
			spec := objects.StatefulSet.Spec
			mounts := map[string]string{}
			for _, mount := range spec.Template.Spec.Containers[0].VolumeMounts {
				mounts[mount.Name] = mount.MountPath
			}
			got := map[string]claim{}
			add := func(c corev1.PersistentVolumeClaim) {
				size := c.Spec.Resources.Requests[corev1.ResourceStorage]
				volume := c.Name
				if c.Name == "ml-datasets" {
					volume = "ml-dev-datasets" // the cluster file names the claim, and not the pods' volume
				}
				got[c.Name] = claim{*c.Spec.StorageClassName, string(c.Spec.AccessModes[0]), size.String(), mounts[volume]}
				if len(c.OwnerReferences) > 0 || *c.Spec.VolumeMode != corev1.PersistentVolumeFilesystem {
					t.Errorf("claim %s: owners %v, mode %s; want no owner, Filesystem", c.Name, c.OwnerReferences, *c.Spec.VolumeMode)
				}
			}
			var volumes []string
			for _, volume := range spec.Template.Spec.Volumes {
				if volume.PersistentVolumeClaim != nil {
					volumes = append(volumes, volume.PersistentVolumeClaim.ClaimName)
				}
			}
			if test.mode == cluster.SharedStorage {
				for _, c := range objects.Claims {
					add(*c)
				}
				if diff := cmp.Diff([]string{"ml-dev-workspace", "ml-datasets"}, volumes); diff != "" {
					t.Errorf("claims of the pod (-want +got):\n%s", diff)
				}
			} else if len(objects.Claims)+len(volumes) > 0 {
				t.Errorf("shared claims %v, of the pod %v; want none", objects.Claims, volumes)
			}
			for _, c := range spec.VolumeClaimTemplates {
				add(c)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if p := spec.PersistentVolumeClaimRetentionPolicy; p.WhenDeleted != "Retain" || p.WhenScaled != "Retain" {
				t.Errorf("retention %+v, want Retain", *p)
			}
		})
	}
}

func TestPortsAreTheServicesAndTheContainers(t *testing.T) {
	r := request(t, "cairo")
	service := build(t, r).Service
	_, container := pod(t, r)
	want := map[string]int32{"code-server": 8080, "jupyter": 8888, "tensorboard": 6006, "debugpy": 5678, "master": 29500, "agent": 7443}
	ofService, ofContainer := map[string]int32{}, map[string]int32{}
	for _, p := range service.Spec.Ports {
		ofService[p.TargetPort.StrVal] = p.Port
	}
	for _, p := range container.Ports {
		ofContainer[p.Name] = p.ContainerPort
	}
	if diff := cmp.Diff(want, ofService); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, ofContainer); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
	if service.Spec.ClusterIP != "None" || !service.Spec.PublishNotReadyAddresses {
		t.Errorf("the service is not headless, or hides nodes that start: %+v", service.Spec)
	}
}

func TestVariables(t *testing.T) {
	r := request(t, "cairo")
	r.Name, r.Namespace = "h-kim", "team"
	_, container := pod(t, r)
	want := map[string]string{
		"MLENV_NAME": "h-kim", "MLENV_MODE": "tcp", "MLENV_HEADLESS": "h-kim-headless.team.svc",
		"MASTER_ADDR": "h-kim-0.h-kim-headless.team.svc", "MASTER_PORT": "29500", "NUM_NODES": "2", "GPUS_PER_NODE": "4", "WORLD_SIZE": "8",
		"NODE_RANK": "<metadata.labels['apps.kubernetes.io/pod-index']>", "POD_NAME": "<metadata.name>", "POD_NAMESPACE": "<metadata.namespace>",
		"POD_IP": "<status.podIP>", "NODE_NAME": "<spec.nodeName>", "DEEPSPEED_HOSTFILE": "/workspace/.deepspeed/hostfile",
		"NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "^lo,docker0", "NCCL_P2P_LEVEL": "NVL",
		"MLENV_NODE_CACHES": "true",
	}
	if diff := cmp.Diff(want, environ(container)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Caches avoid a claim that nodes share, unless the cluster file has another place for them.
func TestCaches(t *testing.T) {
	for _, tc := range []struct {
		mode  cluster.StorageMode
		place cluster.CachePlace
		want  string
	}{
		{cluster.SharedStorage, "", "true"}, {cluster.NodeStorage, "", ""},
		{cluster.SharedStorage, cluster.ClaimCaches, ""}, {cluster.NodeStorage, cluster.NodeCaches, "true"},
	} {
		r := request(t, "cairo")
		r.Storage, r.Cluster.Storage.Caches = tc.mode, tc.place
		if _, container := pod(t, r); environ(container)[agent.NodeCachesVariable] != tc.want {
			t.Errorf("%+v: got %q", tc, environ(container)[agent.NodeCachesVariable])
		}
	}
}

// The agent knows how long its pod has: the default, or the time in the variable.
func TestStopGrace(t *testing.T) {
	for grace, want := range map[time.Duration]struct {
		seconds  int64
		variable string
	}{0: {30, ""}, 30 * time.Second: {30, ""}, 10*time.Minute + 500*time.Millisecond: {601, "10m0.5s"}} {
		r := request(t, "barcelona")
		r.StopGrace = grace
		spec, container := pod(t, r)
		if got := *spec.TerminationGracePeriodSeconds; got != want.seconds || environ(container)[agent.StopGraceVariable] != want.variable {
			t.Errorf("stop-grace %s: got %d s and variable %q, want %+v", grace, got, environ(container)[agent.StopGraceVariable], want)
		}
	}
	r := request(t, "barcelona")
	r.Cluster.Nodes.StopGrace = cluster.Duration(agent.MaxStopGrace)
	if spec, _ := pod(t, r); *spec.TerminationGracePeriodSeconds != 3600 {
		t.Errorf("the cluster file has an hour: got %d s", *spec.TerminationGracePeriodSeconds)
	}
}

// TestVariablesAreDocumented: each variable of the container has its row in docs/reference/node.md.
func TestVariablesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/node.md")
	if err != nil {
		t.Fatal(err)
	}
	r := request(t, "barcelona")
	r.Cluster.Network.Proxy.HTTP, r.Cluster.Network.TrustedCA = "http://proxy.example.com:3128", "cas"
	r.StopGrace = time.Minute
	_, container := pod(t, r)
	for name := range environ(container) {
		if !strings.HasPrefix(name, "NCCL_") && !strings.Contains(string(page), strings.ToUpper(name)) {
			t.Errorf("docs/reference/node.md has no row for %s", name)
		}
	}
}

func TestInterfaces(t *testing.T) {
	for nccl, gloo := range map[string]string{"^lo,docker0": "", "": "", "eth0": "eth0", "=eth0": "eth0", "=eth1,eth2": "eth1"} {
		r := request(t, "cairo")
		r.Cluster.Network.TCP.InterfaceExclude = nccl
		_, container := pod(t, r)
		vars := environ(container)
		if vars["NCCL_SOCKET_IFNAME"] != nccl || vars["GLOO_SOCKET_IFNAME"] != gloo {
			t.Errorf("%q: NCCL %q, gloo %q; want gloo %q", nccl, vars["NCCL_SOCKET_IFNAME"], vars["GLOO_SOCKET_IFNAME"], gloo)
		}
	}
}

func TestProxyTrustedCAAndPullSecret(t *testing.T) {
	r := request(t, "cairo")
	plain, container := pod(t, r)
	without := environ(container)
	if len(plain.ImagePullSecrets) > 0 {
		t.Errorf("pull secrets %v, want none", plain.ImagePullSecrets)
	}

	r.Cluster.Image.PullSecret = "registry"
	r.Cluster.Network.TrustedCA = "company-ca"
	r.Cluster.Network.Proxy = cluster.Proxy{HTTP: "http://proxy:1", HTTPS: "http://proxy:2", NoProxy: cluster.List{"10.0.0.0/8"}}
	spec, container := pod(t, r)
	added := environ(container)
	maps.DeleteFunc(added, func(name, _ string) bool { _, ok := without[name]; return ok })
	const direct, bundle = "10.0.0.0/8,localhost,127.0.0.1,.svc,.svc.cluster.local", "/etc/mlenv/ca/ca-bundle.crt"
	want := map[string]string{
		"HTTP_PROXY": "http://proxy:1", "http_proxy": "http://proxy:1", "HTTPS_PROXY": "http://proxy:2", "https_proxy": "http://proxy:2",
		"NO_PROXY": direct, "no_proxy": direct,
		"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "CURL_CA_BUNDLE": bundle, "PIP_CERT": bundle, "GIT_SSL_CAINFO": bundle,
		"AWS_CA_BUNDLE": bundle, "NODE_EXTRA_CA_CERTS": bundle,
	}
	if diff := cmp.Diff(want, added); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.LocalObjectReference{{Name: "registry"}}, spec.ImagePullSecrets); diff != "" {
		t.Errorf("pull secrets (-want +got):\n%s", diff)
	}
	mounted := slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == "/etc/mlenv/ca" && m.ReadOnly && slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == m.Name && v.ConfigMap != nil && v.ConfigMap.Name == "company-ca"
		})
	})
	if !mounted {
		t.Errorf("the ConfigMap is not mounted at /etc/mlenv/ca: %+v", container.VolumeMounts)
	}
}

// No pod in any mode has its account's token, because ranks could use it.
func TestNoTokenReachesRanks(t *testing.T) {
	for _, r := range []Request{request(t, "cairo"), request(t, "barcelona"), func() Request {
		r := request(t, "barcelona")
		r.Mode = agent.RDMA
		return r
	}()} {
		spec, _ := pod(t, r)
		projected := slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Projected != nil })
		if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken || projected {
			t.Errorf("%s, mode %s: the pod mounts a token", r.Cluster.Cluster.Name, r.Mode)
		}
	}
}

// TestRestricted checks what OpenShift's restricted-v2 and Kubernetes' restricted level require of a pod.
func TestRestricted(t *testing.T) {
	spec, _ := pod(t, request(t, "cairo"))
	context := spec.SecurityContext
	if *context.FSGroupChangePolicy != corev1.FSGroupChangeOnRootMismatch || !*context.RunAsNonRoot || context.RunAsUser != nil ||
		context.FSGroup != nil || context.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("pod: %+v", context)
	}
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		s := container.SecurityContext
		if *s.AllowPrivilegeEscalation || s.RunAsUser != nil || len(s.Capabilities.Add) > 0 || fmt.Sprint(s.Capabilities.Drop) != "[ALL]" {
			t.Errorf("container %s: %+v", container.Name, s)
		}
		if len(container.Resources.Requests) == 0 || len(container.Resources.Limits) == 0 {
			t.Errorf("container %s has no resources, which a quota may require", container.Name)
		}
	}
	for _, volume := range spec.Volumes {
		if volume.HostPath != nil {
			t.Errorf("volume %s is the host's", volume.Name)
		}
	}
	if spec.HostNetwork || spec.HostPID || spec.HostIPC || *spec.AutomountServiceAccountToken {
		t.Error("the pod has something of the host, or the service account's token")
	}
}

func TestSharedMemoryIsHalfTheLimit(t *testing.T) {
	spec, _ := pod(t, request(t, "cairo"))
	for _, volume := range spec.Volumes {
		if volume.Name == memoryVolume {
			if volume.EmptyDir.Medium != corev1.StorageMediumMemory || volume.EmptyDir.SizeLimit.String() != "128Gi" {
				t.Errorf("%+v, want 128Gi of memory", volume.EmptyDir)
			}
			return
		}
	}
	t.Error("no /dev/shm")
}

func TestOwners(t *testing.T) {
	for _, mode := range []cluster.StorageMode{cluster.SharedStorage, cluster.NodeStorage} {
		r := request(t, "cairo")
		r.Storage = mode
		r.Services, r.Routes = []string{"jupyter"}, true
		objects, err := Build(r.WithDefaults(), LeaseReference("ml-dev-env", "1"), fakeCertificates())
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, object := range append(objects.InOrder(), objects.Services.All()...) {
			kind := object.GetObjectKind().GroupVersionKind().Kind
			kinds = append(kinds, kind)
			if object.GetNamespace() != "nccl-test" {
				t.Errorf("%s %s is in namespace %q", kind, object.GetName(), object.GetNamespace())
			}
			owners := object.GetOwnerReferences()
			if kind == "PersistentVolumeClaim" {
				if len(owners) > 0 {
					t.Errorf("claim %s has owners %v", object.GetName(), owners)
				}
				continue
			}
			if len(owners) != 1 || owners[0].Kind != "Lease" || owners[0].UID != "1" || owners[0].Controller != nil ||
				*owners[0].BlockOwnerDeletion {
				t.Errorf("%s %s has owners %v, want the Lease, neither controller nor blocking", kind, object.GetName(), owners)
			}
		}
		want := []string{"ServiceAccount", "Secret", "Secret", "PersistentVolumeClaim", "PersistentVolumeClaim", "Service", "StatefulSet",
			"Secret", "Service", "Route"}
		if mode == cluster.NodeStorage {
			want = slices.Delete(want, 3, 5)
		}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Errorf("%s: order (-want +got):\n%s", mode, diff)
		}
	}
}

func TestSecrets(t *testing.T) {
	r := request(t, "cairo")
	made := fakeCertificates()
	got := map[string]map[string]string{}
	for _, secret := range build(t, r).Secrets {
		got[secret.Name] = map[string]string{}
		for key, value := range secret.Data {
			got[secret.Name][key] = string(value)
		}
	}
	want := map[string]map[string]string{
		"ml-dev-env-agent-server": {"ca.crt": string(made.CA), "tls.crt": string(made.ServerCert), "tls.key": string(made.ServerKey)},
		"ml-dev-env-agent-client": {"ca.crt": string(made.CA), "tls.crt": string(made.ClientCert), "tls.key": string(made.ClientKey)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	kept, err := Build(r.WithDefaults(), LeaseReference(r.Name, "1"), Certificates{})
	if err != nil || len(kept.Secrets) > 0 {
		t.Errorf("without certificates: secrets %v, %v; want those of the cluster kept", kept.Secrets, err)
	}
}

// The ranks cannot change the agent's programs, and the agent has a folder for what it writes.
func TestProgramsAreReadOnly(t *testing.T) {
	spec, container := pod(t, request(t, "barcelona"))
	mounts := map[string]corev1.VolumeMount{}
	for _, mount := range container.VolumeMounts {
		mounts[mount.MountPath] = mount
	}
	if bin := mounts[path.Dir(agent.Program)]; !bin.ReadOnly {
		t.Errorf("the programs are mounted by %+v, want it read-only", bin)
	}
	run := mounts[path.Dir(agent.Socket)]
	if run.Name == "" || run.ReadOnly || run.Name == mounts[path.Dir(agent.Program)].Name {
		t.Errorf("the agent's own folder is mounted by %+v, want a volume of its own", run)
	}
	for at, mount := range mounts {
		if strings.HasPrefix(path.Dir(agent.Program)+"/", at+"/") && !mount.ReadOnly {
			t.Errorf("%s, above the programs, is writable", at)
		}
	}
	if install := spec.InitContainers[0].VolumeMounts; len(install) != 1 || install[0].Name != mounts[path.Dir(agent.Program)].Name ||
		install[0].ReadOnly {
		t.Errorf("the init container mounts %+v, want the programs' volume", install)
	}
}

// A proxy's password may have what the kubelet takes for a reference.
func TestVariablesArriveExactly(t *testing.T) {
	r := request(t, "cairo")
	const proxy = "http://user:pa$$(HOME)word@proxy:3128"
	r.Cluster.Network.Proxy = cluster.Proxy{HTTP: proxy, HTTPS: proxy}
	_, container := pod(t, r)
	for _, name := range []string{"HTTP_PROXY", "https_proxy"} {
		if got := kubelet.Expand(environ(container)[name], map[string]string{"HOME": "/root"}); got != proxy {
			t.Errorf("%s is %q, want %q", name, got, proxy)
		}
	}
}
