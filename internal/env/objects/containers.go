package objects

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
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
	agentVolume = "mlenv"
	tlsVolume   = "agent-tls"
	// servicesVolume exists without services too, so that later ones change no pod.
	servicesVolume = "services"
	memoryVolume   = "dev-shm"
	caVolume       = "trusted-ca"
)

// agentContainer has requests and limits because some quotas require them.
func (b builder) agentContainer() corev1.Container {
	return corev1.Container{
		Name:            AgentContainer,
		Image:           b.StepsImage,
		Command:         []string{"/mlenv-agent", "install", agent.Home + "/bin"},
		SecurityContext: restricted(),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: agentVolume, MountPath: agent.Home}},
	}
}

func (b builder) trainContainer() corev1.Container {
	container := corev1.Container{
		Name:            TrainContainer,
		Image:           b.Image,
		Command:         []string{agent.Program, "serve"},
		Env:             b.variables(),
		SecurityContext: b.trainSecurity(),
		Resources:       corev1.ResourceRequirements{Requests: b.resources(b.Cluster.Resources.Requests), Limits: b.resources(b.Cluster.Resources.Limits)},
		// Not HTTP: the kubelet has no client certificate. There is no liveness probe, which would end a training on a
		// busy node.
		StartupProbe:   ready(1, 600),
		ReadinessProbe: ready(10, 3),
		VolumeMounts: []corev1.VolumeMount{
			{Name: agentVolume, MountPath: agent.Home},
			{Name: tlsVolume, MountPath: agent.TLS, ReadOnly: true},
			{Name: servicesVolume, MountPath: agent.ServicesDir, ReadOnly: true},
			{Name: memoryVolume, MountPath: "/dev/shm"},
		},
	}
	for _, p := range ports() {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: p.Name, ContainerPort: p.Port, Protocol: p.Protocol})
	}
	for _, c := range b.claimList() {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: c.name, MountPath: c.path})
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

// resources are a node's requests or limits; devices can only be the same in both.
func (b builder) resources(amounts cluster.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    amounts.CPU.Quantity,
		corev1.ResourceMemory: amounts.Memory.Quantity,
		gpuResource:           *resource.NewQuantity(int64(b.GPUsPerNode), resource.DecimalSI),
	}
	if b.Mode == RDMA {
		for name, count := range b.Cluster.Network.RDMA.Resources {
			list[corev1.ResourceName(name)] = *resource.NewQuantity(int64(count), resource.DecimalSI)
		}
	}
	return list
}

func (b builder) volumes() []corev1.Volume {
	volumes := []corev1.Volume{
		{Name: agentVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: tlsVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: b.names.ServerSecret,
			// A pod's user has group 0, or the volume's group.
			DefaultMode: new(int32(0o440)),
		}}},
		{Name: servicesVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: b.names.ServicesSecret, DefaultMode: new(int32(0o440)),
		}}},
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
		for _, c := range b.claimList() {
			volumes = append(volumes, corev1.Volume{Name: c.name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.name},
			}})
		}
	}
	return volumes
}
