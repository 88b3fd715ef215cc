// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/literal"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Containers of a node's pod.
const (
	// AgentContainer runs first and copies the agent into the pod.
	AgentContainer = "agent"
	// TrainContainer runs the agent and, under it, the training.
	TrainContainer = "train"
)

const gpuResource = "nvidia.com/gpu"

// Volumes of a node's pod, in addition to the claims.
const (
	// agentVolume has the agent's programs, which the ranks cannot change, and runVolume what the agent writes while it runs.
	agentVolume = "mlenv"
	runVolume   = "mlenv-run"
	tlsVolume   = "agent-tls"
	// servicesVolume exists without services too, so that later ones change no pod.
	servicesVolume = "services"
	memoryVolume   = "dev-shm"
	caVolume       = "trusted-ca"
)

// programs is the folder of the agent's programs in a node.
const programs = agent.Home + "/bin"

// agentContainer has requests and limits because some quotas require them.
func (b builder) agentContainer() corev1.Container {
	return corev1.Container{
		Name:            AgentContainer,
		Image:           b.StepsImage,
		Command:         []string{agent.StepsProgram, "agent", "install", programs},
		SecurityContext: restricted(),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: agentVolume, MountPath: programs}},
	}
}

func (b builder) trainContainer() corev1.Container {
	container := corev1.Container{
		Name:            TrainContainer,
		Image:           b.Image,
		Command:         []string{agent.Program, "serve"},
		Env:             b.variables(),
		SecurityContext: b.trainSecurity(),
		Resources: corev1.ResourceRequirements{Requests: b.resources(b.Cluster.Resources.Requests),
			Limits: b.resources(b.Cluster.Resources.Limits)},
		// Not HTTP: the kubelet has no client certificate. There is no liveness probe, which would end a training on a
		// busy node.
		StartupProbe:   ready(1, 600),
		ReadinessProbe: ready(10, 3),
		VolumeMounts: []corev1.VolumeMount{
			{Name: agentVolume, MountPath: programs, ReadOnly: true},
			{Name: runVolume, MountPath: agent.Home + "/run"},
			{Name: tlsVolume, MountPath: agent.TLS, ReadOnly: true},
			{Name: servicesVolume, MountPath: agent.ServicesDir, ReadOnly: true},
			{Name: memoryVolume, MountPath: "/dev/shm"},
		},
	}
	for _, p := range servicePorts() {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: p.Name, ContainerPort: p.Port, Protocol: p.Protocol})
	}
	for _, m := range b.Mounts() {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: m.Volume, MountPath: m.Path})
	}
	if b.Cluster.Network.TrustedCA != "" {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: caVolume, MountPath: caFolder, ReadOnly: true})
	}
	return container
}

func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// ready asks the agent; period is in seconds.
func ready(period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{agent.Program, "ready"}}},
		PeriodSeconds:    period,
		TimeoutSeconds:   5,
		FailureThreshold: failures,
	}
}

// resources returns a node's requests or limits; devices can only be the same in both.
func (b builder) resources(amounts cluster.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    amounts.CPU.Quantity,
		corev1.ResourceMemory: amounts.Memory.Quantity,
	}
	if gpus := b.GPUs(); gpus > 0 {
		list[gpuResource] = *resource.NewQuantity(int64(gpus), resource.DecimalSI)
	}
	if b.Mode == agent.RDMA {
		for name, count := range b.Cluster.Network.RDMA.Resources {
			list[corev1.ResourceName(name)] = *resource.NewQuantity(int64(count), resource.DecimalSI)
		}
	}
	return list
}

func (b builder) volumes() []corev1.Volume {
	secret := func(name string) corev1.VolumeSource {
		// A pod's user has group 0, or the volume's group.
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: new(int32(0o440))}}
	}
	volumes := []corev1.Volume{
		{Name: agentVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: runVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: tlsVolume, VolumeSource: secret(b.names.ServerSecret)},
		{Name: servicesVolume, VolumeSource: secret(b.names.ServicesSecret)},
		// A node's ranks exchange data through it. It counts as the container's memory.
		{Name: memoryVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(b.Cluster.Resources.Limits.Memory.Value()/2, resource.BinarySI),
		}}},
	}
	if ca := b.Cluster.Network.TrustedCA; ca != "" {
		volumes = append(volumes, corev1.Volume{Name: caVolume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: ca},
			Items:                []corev1.KeyToPath{{Key: cluster.TrustedCAKey, Path: cluster.TrustedCAKey}},
		}}})
	}
	if b.Storage == cluster.SharedStorage {
		for _, m := range b.Mounts() {
			volumes = append(volumes, corev1.Volume{Name: m.Volume, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: m.Claim},
			}})
		}
	}
	return volumes
}

// variables returns the container's variables, for the agent and for `oc exec`. The agent adds what only the node itself knows.
func (b builder) variables() []corev1.EnvVar {
	vars := []corev1.EnvVar{
		{Name: "MLENV_NAME", Value: b.Name},
		{Name: "MLENV_MODE", Value: string(b.Mode)},
		{Name: "MLENV_HEADLESS", Value: b.names.Suffix()},
		field("POD_NAME", "metadata.name"),
		field("POD_NAMESPACE", "metadata.namespace"),
		field("POD_IP", "status.podIP"),
		field("NODE_NAME", "spec.nodeName"),
		field("NODE_RANK", "metadata.labels['apps.kubernetes.io/pod-index']"),
		{Name: "GPUS_PER_NODE", Value: strconv.Itoa(b.GPUs())},
		{Name: "DEEPSPEED_HOSTFILE", Value: agent.Hostfile},
	}
	if grace := b.stopGrace(); grace != agent.DefaultStopGrace { // the agent's own default needs no variable
		vars = append(vars, corev1.EnvVar{Name: agent.StopGraceVariable, Value: grace.String()})
	}
	if b.GPUs() == 0 { // NVIDIA's images ask for all, and its runtime gives them to a pod that requests none
		vars = append(vars, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"})
	}
	if b.sharesWorkspace() {
		vars = append(vars, corev1.EnvVar{Name: agent.SharesWorkspaceVariable, Value: "true"})
	}
	if b.cachesOnNode() {
		vars = append(vars, corev1.EnvVar{Name: agent.NodeCachesVariable, Value: "true"})
	}
	world := agent.World{Master: b.names.TLSName(0), Nodes: b.Nodes, RanksPerNode: b.GPUs()}
	return slices.Concat(vars, variables(world.Variables()), b.networkVariables(), b.caVariables(), b.proxyVariables())
}

// sharesWorkspace reports whether the cluster file makes the environment mount the workspace of another one, although its name does
// not. The default environment is the one that the top of the workspace belongs to.
func (b builder) sharesWorkspace() bool {
	return b.Storage == cluster.SharedStorage && b.Cluster.Storage.WorkspaceClaim != "" && b.Name != DefaultName && !agent.SharesClaims(b.Name)
}

// cachesOnNode reports where caches are. Without the key they avoid a shared claim, whose file system may lack locks that reach other
// nodes. A node's own claim has them.
func (b builder) cachesOnNode() bool {
	if place := b.Cluster.Storage.Caches; place != "" {
		return place == cluster.NodeCaches
	}
	return b.Storage == cluster.SharedStorage
}

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// networkVariables returns NCCL's variables. In mode agent.RDMA the agents set most of them.
func (b builder) networkVariables() []corev1.EnvVar {
	tcp := b.Cluster.Network.TCP
	vars := variables(nccl.OfPods(b.Cluster.NCCL.Debug, tcp.P2PLevel))
	if b.Mode == agent.RDMA {
		return vars
	}
	return append(vars, variables(nccl.SocketsOnly(tcp.InterfaceExclude))...)
}

// variables are sorted by name: a map has no order, and the order of a pod's variables is part of its template.
func variables(env map[string]string) []corev1.EnvVar {
	vars := make([]corev1.EnvVar, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		vars = append(vars, corev1.EnvVar{Name: name, Value: literal.Escape(env[name])})
	}
	return vars
}

const caFolder = "/etc/mlenv/ca"

// caVariables name the bundle to programs with CAs of their own.
func (b builder) caVariables() (vars []corev1.EnvVar) {
	if b.Cluster.Network.TrustedCA == "" {
		return nil
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
	} {
		vars = append(vars, corev1.EnvVar{Name: name, Value: caFolder + "/" + cluster.TrustedCAKey})
	}
	return vars
}

// proxyVariables have both spellings: curl reads only http_proxy.
func (b builder) proxyVariables() (vars []corev1.EnvVar) {
	proxy := b.Cluster.Network.Proxy
	if proxy.HTTP == "" && proxy.HTTPS == "" {
		return nil
	}
	// The nodes' own names end in .svc.
	direct := slices.Concat(proxy.NoProxy, []string{"localhost", "127.0.0.1", ".svc", ".svc.cluster.local"})
	for _, v := range []corev1.EnvVar{
		{Name: "HTTP_PROXY", Value: proxy.HTTP}, {Name: "HTTPS_PROXY", Value: proxy.HTTPS}, {Name: "NO_PROXY", Value: strings.Join(direct, ",")},
	} {
		if v.Value = literal.Escape(v.Value); v.Value != "" {
			vars = append(vars, v, corev1.EnvVar{Name: strings.ToLower(v.Name), Value: v.Value})
		}
	}
	return vars
}
