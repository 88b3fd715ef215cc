// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

const (
	insufficient = "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) didn't match Pod's node affinity/selector. no new " +
		"claims to deallocate, preemption: 0/5 nodes are available: 2 No preemption victims found for incoming pod, 3 Preemption is not " +
		"helpful for scheduling."
	insufficientRail = "0/5 nodes are available: 2 Insufficient openshift.io/eno5np0rdma, 3 node(s) didn't match Pod's node affinity/selector."
	unboundNow       = "0/5 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
)

// sandbox begins the events of CRI-O and Multus.
const sandbox = `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network sandbox ` +
	`k8s_ml-dev-env-0_nccl-test_uid_0(abc): error adding pod nccl-test_ml-dev-env-0 to CNI network "multus-cni-network": plugin ` +
	`type="multus-shim" name="multus-cni-network" failed (add): CmdAdd (shim): CNI request failed with status 400: 'ContainerID:"abc" ` +
	`Netns:"/var/run/netns/1" IfName:"eth0" Args:"IgnoreUnknown=1;K8S_POD_NAME=ml-dev-env-0" Path:"" ERRORED: error configuring pod ` +
	`[nccl-test/ml-dev-env-0] networking: `

// attached gives a pod network attachments.
func attached(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{objects.NetworksAnnotation: strings.Join(names, ", ")}
	}
}

// rejected returns a pod that its kubelet has refused.
func rejected(message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError", Message: message}
	}
}

func snapshots() map[string]Snapshot {
	return map[string]Snapshot{
		"gpus held by others": withPods(2, unschedulable(insufficient)).
			node("node-1", "4").node("node-2", "4").node("node-3", "0").
			holds("alice", "notebook-0", "node-1", "2", nil).
			holds("bob", "h-kim-1", "node-1", "1", map[string]string{objects.EnvironmentLabel: "h-kim"}).
			holds("bob", "h-kim-0", "node-2", "4", map[string]string{objects.EnvironmentLabel: "h-kim"}),
		"gpus, pods elsewhere may not be read": withPods(2, unschedulable(insufficient)).node("node-1", "4").node("node-2", "4"),
		"gpus, nodes may not be read":          withPods(2, unschedulable(insufficient)),
		"rdma resource":                        withPods(2, withRail, unschedulable(insufficientRail)).node("node-1", "4").node("node-2", "4"),
		"rdma resource, nodes may not be read": withPods(2, withRail, unschedulable(insufficientRail)),
		"more gpus than nodes have": withPods(2, unschedulable(insufficient)).node("node-1", "2").node("node-2", "2").holds("a", "b",
			"node-9", "1", nil),
		"one pod ready, one without gpus": func() Snapshot {
			s := snapshotOf(2)
			s.pod(0, isReady)
			s.pod(1, unschedulable("0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match pod anti-affinity rules. "+
				"preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."))
			return s.node("node-1", "4").node("node-2", "4").holds("alice", "notebook-0", "node-2", "1", nil)
		}(),
		"taint, since 1.34 unnamed": withPods(2,
			unschedulable("0/2 nodes are available: 2 node(s) had untolerated taint(s). preemption: 0/2 nodes are available: 2 Preemption is not "+
				"helpful for scheduling.")).
			node("node-1", "4", taint("team", "vision"), taint("nvidia.com/gpu", "")).
			node("node-2", "4", taint("team", "vision")),
		"taint before 1.34, nodes may not be read": withPods(1,
			unschedulable("0/5 nodes are available: 2 node(s) had untolerated taint {team: vision}, 3 node(s) had untolerated taint "+
				"{node-role.kubernetes.io/master: }.")),
		"taint of 1.34, nodes may not be read": withPods(1, unschedulable("0/2 nodes are available: 2 node(s) had untolerated taint(s).")),
		"cordoned and not ready": withPods(2,
			unschedulable("0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.")).
			node("node-1", "4", func(n *corev1.Node) { n.Spec.Unschedulable = true }, taint("node.kubernetes.io/unschedulable", "")).
			node("node-2", "4", func(n *corev1.Node) {
				n.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown,
					Message: "Kubelet stopped posting node status."}
			}),
		"listed nodes do not exist": withPods(2,
			unschedulable("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.")).node("moc-r4pcc02u15", "4"),
		"more nodes than listed": func() Snapshot {
			s := snapshotOf(3)
			s.pod(0, isReady)
			s.pod(1, isReady)
			s.pod(2, unschedulable("0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."))
			return s.node("node-1", "4").node("node-2", "4")
		}(),
		"cpu": withPods(1, unschedulable("0/2 nodes are available: 2 Insufficient cpu.")).node("node-1", "4").node("node-2", "4"),
		"volume on another node": withPods(1,
			unschedulable("0/2 nodes are available: 1 node(s) had volume node affinity conflict, 1 node(s) were unschedulable.")).
			node("node-1", "4").node("node-2", "4", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		"gated by kueue": withPods(1, func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonSchedulingGated, LastTransitionTime: ago(time.Minute)}}
		}),
		"waits for a queue": withPods(1, func(p *corev1.Pod) {
			p.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/pod-group-name": "statefulset-ml-dev-env-1a2b3"}
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonSchedulingGated, LastTransitionTime: ago(time.Minute)}}
		}).queued(3, "statefulset-ml-dev-env-1a2b3", "couldn't assign flavors to pod set 2a7b1c9d: insufficient unused quota for "+
			"nvidia.com/gpu in flavor h100, 2 more needed"),
		"words of no known form": withPods(1,
			unschedulable("running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded")),

		"nfs server without a class": withPods(2, unschedulable(unboundNow)).
			claim(space, "ml-dev-workspace", "nfs-csi").claim(space, "ml-dev-datasets", "nfs-csi").serverClaim(),
		"nfs server's claims may not be read": withPods(1, unschedulable(unboundNow)).claim(space, "ml-dev-workspace", "nfs-csi").
			says("ml-dev-workspace", "ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner "+
				"'nfs.csi.k8s.io' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is "+
				"running and correctly registered."),
		"provisioning failed": withPods(1, unschedulable(unboundNow)).claim(space, "ml-dev-workspace", "ocs-external-storagecluster-ceph-rbd").
			says("ml-dev-workspace", "ProvisioningFailed", "failed to provision volume with StorageClass "+
				"\"ocs-external-storagecluster-ceph-rbd\": rpc error: code = InvalidArgument desc = multi node access modes are only supported on "+
				"rbd `block` type volumes"),
		"no such class":   withPods(1, unschedulable(unboundNow)).claim(space, "ml-dev-workspace", "cephfs"),
		"no class at all": withPods(1, unschedulable(unboundNow)).claim(space, "ml-dev-workspace", "-"),
		"empty class":     withPods(1, unschedulable(unboundNow)).claim(space, "ml-dev-workspace", ""),
		"waits for a pod": withPods(1, unschedulable(insufficient)).claim(space, "ml-dev-workspace",
			"ocs-external-storagecluster-ceph-rbd").says("ml-dev-workspace", "WaitForFirstConsumer", "waiting for pod ml-dev-env-0 to be scheduled"),
		"claim is missing": withPods(1,
			unschedulable("0/2 nodes are available: persistentvolumeclaim \"ml-dev-workspace\" not found. not found")),

		"mount times out": withPods(1, on).with("FailedMount", "MountVolume.SetUp failed for volume \"pvc-1234\" : rpc error: code = Internal "+
			"desc = mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs nfs-server.nfs.svc.cluster.local:/ "+
			"/var/lib/kubelet/x\nOutput: mount.nfs: Connection timed out\n").
			with("FailedMount", "Unable to attach or mount volumes: unmounted volumes=[workspace], unattached volumes=[], failed to process "+
				"volumes=[]: timed out waiting for the condition"),
		"secret is missing": withPods(2, on).with("FailedMount", "MountVolume.SetUp failed for volume \"tls\" : secret "+
			"\"ml-dev-env-agent-server\" not found"),
		"secret is slow": withPods(1, on, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{
				{Name: "agent-tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "ml-dev-env-agent-server"}}}}
		}).with("FailedMount", "MountVolume.SetUp failed for volume \"agent-tls\" : failed to sync secret cache: timed out waiting for the "+
			"condition"),
		"attached elsewhere": withPods(1, on).with("FailedAttachVolume", "Multi-Attach error for volume \"pvc-1234\" Volume is already used by "+
			"pod(s) old-0"),
		"attached since": withPods(1, on).with("FailedAttachVolume", "Multi-Attach error for volume \"pvc-1234\" Volume is already used by "+
			"pod(s) old-0").with("SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume \"pvc-1234\" "),

		"scc refuses IPC_LOCK": refusedBy(2,
			`unable to validate against any security context constraint: [provider "anyuid": Forbidden: not usable by user or serviceaccount, `+
				`provider restricted-v2: .containers[0].runAsUser: Invalid value: 0: must be in the ranges: [1000650000, 1000659999], provider `+
				`restricted-v2: .containers[0].capabilities.add: Invalid value: "IPC_LOCK": capability may not be added, provider "privileged": `+
				`Forbidden: not usable by user or serviceaccount]`),
		"scc refuses IPC_LOCK, pinned": func() Snapshot {
			s := refusedBy(1, `unable to validate against any security context constraint: [provider "nccl-scc": Forbidden: not usable by user or `+
				`serviceaccount]`)
			s.StatefulSet.Spec.Template.Annotations = map[string]string{"openshift.io/required-scc": "nccl-scc"}
			return s
		}(),
		"scc refuses, older words": refusedBy(1,
			`unable to validate against any security context constraint: [provider "anyuid": Forbidden: not usable by user or serviceaccount, `+
				`spec.containers[0].securityContext.privileged: Invalid value: true: Privileged containers are not allowed, spec.volumes[3]: Invalid `+
				`value: "hostPath": hostPath volumes are not allowed to be used]`),
		"scc: user out of range": refusedBy(1,
			`unable to validate against any security context constraint: [provider restricted-v2: .spec.securityContext.fsGroup: Invalid value: `+
				`[]int64{0}: 0 is not an allowed group, provider restricted-v2: .initContainers[0].runAsUser: Invalid value: 65532: must be in the `+
				`ranges: [1000650000, 1000659999]]`),
		"pod security": refusedBy(1,
			`violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "train" must set `+
				`securityContext.allowPrivilegeEscalation=false), seccompProfile (pod or container "train" must set `+
				`securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")`),
		"quota filled by others": refusedBy(2,
			`exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=6, limited: requests.nvidia.com/gpu=8`),
		"quota too small": refusedBy(2,
			`exceeded quota: gpus, requested: pods=1,requests.nvidia.com/gpu=4, used: pods=3,requests.nvidia.com/gpu=0, limited: `+
				`pods=3,requests.nvidia.com/gpu=4`),
		"quota wants limits": refusedBy(1, `failed quota: compute: must specify limits.cpu for: agent; limits.memory for: agent`),
		"limit range": refusedBy(1,
			`[maximum memory usage per Container is 64Gi, but limit is 256Gi, maximum memory usage per Pod is 64Gi, but limit is 274877906944]`),
		"no service account": refusedBy(1, `error looking up service account nccl-test/ml-dev-sa: serviceaccount "ml-dev-sa" not found`),
		"webhook denies": rejectedBy(
			`admission webhook "validation.gatekeeper.sh" denied the request: [must-have-owner] you must provide labels: {"owner"}`),
		"webhook down": rejectedBy(
			`Internal error occurred: failed calling webhook "mpod.kb.io": failed to call webhook: Post ` +
				`"https://kueue-webhook-service.kueue-system.svc:443/mutate?timeout=10s": dial tcp 10.96.1.2:443: connect: connection refused`),
		"refused before, made now": func() Snapshot { s := refusedBy(1, "exceeded quota: x"); s.pod(0, on); return s }(),
		"refused another statefulset": func() Snapshot {
			s := refusedBy(1, "exceeded quota: x")
			s.Events[0].InvolvedObject.UID = "older"
			return s
		}(),

		"image does not exist, cri-o": withPods(2,
			waiting("ImagePullBackOff",
				`Back-off pulling image "quay.io/example/training:1": ErrImagePull: reading manifest 1 in quay.io/example/training: manifest unknown`)).
			with("Failed", `Failed to pull image "quay.io/example/training:1": reading manifest 1 in quay.io/example/training: manifest unknown`),
		"image does not exist, containerd": withPods(1,
			waiting("ErrImagePull",
				`rpc error: code = NotFound desc = failed to pull and unpack image "quay.io/example/training:1": failed to resolve reference `+
					`"quay.io/example/training:1": quay.io/example/training:1: not found`)),
		"image back-off without words": withPods(1, waiting("ImagePullBackOff", `Back-off pulling image "quay.io/example/training:1"`)).
			with("Failed",
				`Failed to pull image "quay.io/example/training:1": rpc error: code = Unknown desc = reading manifest 1 in quay.io/example/training: `+
					`unauthorized: access to the requested resource is not authorized`).
			with("Failed", "Error: ErrImagePull"),
		"image of the internal registry": withPods(1, func(p *corev1.Pod) {
			waiting("ErrImagePull",
				`initializing source docker://image-registry.openshift-image-registry.svc:5000/builds/pytorch:2.9: reading manifest 2.9 in `+
					`image-registry.openshift-image-registry.svc:5000/builds/pytorch: authentication required`)(p)
			p.Spec.Containers[0].Image = "image-registry.openshift-image-registry.svc:5000/builds/pytorch:2.9"
		}),
		"image name": withPods(1,
			waiting("InvalidImageName",
				`Failed to apply default image tag "quay.io/example/Training:1": couldn't parse image name "quay.io/example/Training:1": invalid `+
					`reference format: repository name (example/Training) must be lowercase`)),
		"image never pulled": withPods(1,
			waiting("ErrImageNeverPull", `Container image "quay.io/example/training:1" is not present with pull policy of Never`)),
		"image pull limit": withPods(1,
			waiting("ErrImagePull",
				`reading manifest 1 in quay.io/example/training: toomanyrequests: You have reached your unauthenticated pull rate limit`)),
		"invalid pod": rejectedBy(
			`Pod "ml-dev-env-0" is invalid: spec.containers[0].resources.requests: Invalid value: "32": must be less than or equal to cpu ` +
				`limit of 16`),
		"image certificate": withPods(1,
			waiting("ErrImagePull",
				`pinging container registry quay.io: Get "https://quay.io/v2/": tls: failed to verify certificate: x509: certificate signed by `+
					`unknown authority`)),
		"image registry unknown": withPods(1,
			waiting("ErrImagePull",
				`rpc error: code = Unknown desc = failed to pull and unpack image "quay.io/example/training:1": failed to resolve reference `+
					`"quay.io/example/training:1": failed to do request: Head "https://quay.io/v2/example/training/manifests/1": dial tcp: lookup `+
					`quay.io on 10.0.0.10:53: no such host`)),
		"image registry down": withPods(1,
			waiting("ErrImagePull",
				`pinging container registry quay.io: Get "https://quay.io/v2/": dial tcp 10.1.2.3:443: connect: connection refused`)),
		"image of another processor": withPods(1,
			waiting("ErrImagePull",
				`choosing an image from manifest list docker://quay.io/example/training:1: no image found in image index for architecture "arm64", `+
					`variant "v8", OS "linux": no image found in manifest list for architecture "arm64"`)).node("node-1", "4"),
		"image being pulled": withPods(1, waiting("ContainerCreating", "")).with("Pulling", `Pulling image "quay.io/example/training:1"`),

		"secret of a variable": withPods(1, waiting("CreateContainerConfigError", `secret "wandb" not found`)),
		"key of a variable":    withPods(1, waiting("CreateContainerConfigError", `couldn't find key token in Secret nccl-test/wandb`)),
		"root image": withPods(1,
			waiting("CreateContainerConfigError",
				`container has runAsNonRoot and image will run as root (pod: "ml-dev-env-0_nccl-test(uid)", container: train)`)),
		"program is missing": withPods(1,
			crashed(1, corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError",
				Message: `failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to ` +
					`start container process: exec: "/mlenv/bin/mlenv-agent": stat /mlenv/bin/mlenv-agent: no such file or directory: unknown`})),
		"program of another processor": withPods(1,
			crashed(2, corev1.ContainerStateTerminated{ExitCode: 255, Reason: "Error", Message: "exec /mlenv/bin/mlenv-agent: exec format " +
				"error\n"})).node("node-1", "4"),
		"crashes": withPods(2,
			crashed(5, corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "reading /mlenv/tls/tls.crt: permission denied\n"})),
		"killed for memory": withPods(1, crashed(1, corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"})),
		"init container fails": withPods(1, func(p *corev1.Pod) {
			on(p)
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
				Name: "agent", RestartCount: 1,
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error",
					FinishedAt: ago(5 * time.Second)}},
			}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "train", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}}
		}),
		"agent does not answer": withPods(1, isReady, func(p *corev1.Pod) {
			p.Status.Conditions[0].Status = corev1.ConditionFalse
			p.Status.ContainerStatuses[0].Ready = false
		}).with("Unhealthy", "Readiness probe failed: dialing 10.128.2.5:7443: connection refused"),

		"network attachment is missing": withPods(1, on).with("FailedCreatePodSandBox",
			`Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network sandbox `+
				`k8s_ml-dev-env-0_nccl-test_uid_0(abc): error adding pod nccl-test_ml-dev-env-0 to CNI network "multus-cni-network": plugin `+
				`type="multus-shim" name="multus-cni-network" failed (add): CmdAdd (shim): CNI request failed with status 400: 'ContainerID:"abc" `+
				`ERRORED: error configuring pod [nccl-test/ml-dev-env-0] networking: Multus: [nccl-test/ml-dev-env-0/uid]: error loading k8s `+
				`delegates k8s args: TryLoadPodDelegates: error in getting k8s network for pod: GetNetworkDelegates: failed getting the delegate: `+
				`getKubernetesDelegate: cannot find a network-attachment-definition (eno5np0-network) in namespace (default): `+
				`network-attachment-definitions.k8s.cni.cncf.io "eno5np0-network" not found'`),
		"network attachment has no address": withPods(1, on).with("FailedCreatePodSandBox",
			`Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network sandbox `+
				`k8s_ml-dev-env-0_nccl-test_uid_0(abc): plugin type="multus-shim" name="multus-cni-network" failed (add): `+
				`[nccl-test/ml-dev-env-0/uid:eno5np0-network]: error adding container to network "eno5np0-network": Error assigning IP via `+
				`whereabouts: could not allocate IP in range: ip: 10.0.103.1 / - 10.0.103.254 / range: 10.0.103.0/24`),
		"network attachment's plugin is missing": withPods(1, on).with("FailedCreatePodSandBox",
			`Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network sandbox `+
				`k8s_ml-dev-env-0_nccl-test_uid_0(abc): plugin type="multus-shim" name="multus-cni-network" failed (add): failed to find plugin `+
				`"sriov" in path [/opt/multus/bin /var/lib/cni/bin]`),
		"network attachment: SR-IOV without a device": withPods(1, on, attached("default/eno5np0-network", "default/eno6np0-network")).
			with("FailedCreatePodSandBox", sandbox+
				`[nccl-test/ml-dev-env-0/uid:eno6np0-network]: error adding container to network "eno6np0-network": SRIOV-CNI failed to load `+
				`netconf: LoadConf(): VF pci addr is required`),
		"network attachment: macvlan without its interface": withPods(1, on, attached("rail1")).
			with("FailedCreatePodSandBox", sandbox+`[nccl-test/ml-dev-env-0/uid:rail1]: error adding container to network "rail1": Link not found`),
		"network attachment: host-device, older Multus": withPods(1, on, attached(`[{"name":"rail1","namespace":"default","interface":"net1"}]`)).
			with("FailedCreatePodSandBox",
				`Failed create pod sandbox: rpc error: code = Unknown desc = [failed to set up sandbox container "abc" network for pod `+
					`"ml-dev-env-0": NetworkPlugin cni failed to set up pod "ml-dev-env-0_nccl-test" network: Multus: Err adding pod to network `+
					`"rail1": Multus: error in invoke Delegate add - "host-device": failed to find host device: no net directory under pci device `+
					`0000:00:14.0]`),
		"network attachment: whereabouts, its own words": withPods(1, on, attached("default/eno5np0-network")).
			with("FailedCreatePodSandBox", sandbox+
				`[nccl-test/ml-dev-env-0/uid:eno5np0-network]: error adding container to network "eno5np0-network": error at storage engine: Could `+
				`not allocate IP in range: ip: 172.16.0.1 / - 172.16.0.6 / range: 172.16.0.0/29`),
		"network attachment: OVN-Kubernetes, named otherwise": withPods(1, on, attached("default/eno5np0-network")).
			with("FailedCreatePodSandBox", sandbox+
				`[nccl-test/ml-dev-env-0/uid:localnet1]: error adding container to network "localnet1": CNI request failed with status 400: `+
				`'[nccl-test/ml-dev-env-0 abc network localnet1 NAD default/eno5np0-network] failed to configure pod interface: timed out waiting `+
				`for OVS port binding`),
		"network attachment: InfiniBand without a GUID": withPods(1, on, attached("default/ib0", "default/ib1")).
			with("FailedCreatePodSandBox", sandbox+
				`[nccl-test/ml-dev-env-0/uid:ib1]: error adding container to network "ib1": infiniBand SRIOV-CNI failed, InfiniBand status `+
				`"mellanox.infiniband.app" is not "configured" please check mellanox ib-kubernetes`),
		"network attachment: a plugin without words": withPods(1, on, attached("default/rail1", "default/rail2")).
			with("AddedInterface", "Add eth0 [10.128.1.7/23] from ovn-kubernetes").
			with("FailedCreatePodSandBox", "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to set up sandbox container "+
				"\"abc\" network for pod \"ml-dev-env-0\": networkPlugin cni failed to set up pod \"ml-dev-env-0_nccl-test\" network: netplugin "+
				"failed with no error message"),
		"network of all pods, beside an attachment": withPods(1, on, attached("default/eno5np0-network")).
			with("AddedInterface", "Add eth0 [10.128.1.7/23] from ovn-kubernetes").
			with("FailedCreatePodSandBox", sandbox+
				`[nccl-test/ml-dev-env-0/uid:ovn-kubernetes]: error adding container to network "ovn-kubernetes": CNI request failed with status `+
				`400: '[nccl-test/ml-dev-env-0 abc network default NAD default] failed to configure pod interface: timed out waiting for OVS port `+
				`binding'`),
		"network of all pods, its plugin is missing": withPods(1, on, attached("default/eno5np0-network")).
			with("FailedCreatePodSandBox", sandbox+`failed to find plugin "loopback" in path [/opt/cni/bin]`),
		"network is not ready": withPods(1, on).with("NetworkNotReady", "network is not ready: container runtime network not ready: "+
			"NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: no CNI configuration file in "+
			"/etc/kubernetes/cni/net.d/"),
		"node lost under a pod": withPods(1, on).node("node-1", "4", func(n *corev1.Node) {
			n.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown,
				Message: "Kubelet stopped posting node status.", LastTransitionTime: ago(time.Minute)}
		}),
		"evicted": withPods(1, on, func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: ephemeral-storage. " +
				"Threshold quantity: 10Gi, available: 2Gi. "}
		}),
		"device allocation": withPods(1, on, func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError",
				Message: "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 4, " +
					"Available: 2, which is unexpected"}
		}),
		"device allocation: a lost GPU": withPods(1, on,
			rejected("Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = Unable to "+
				"retrieve list of available devices: error creating nvml.Device 5: nvml: GPU is lost, which is unexpected")),
		"device allocation: links of a lost GPU": withPods(1, on,
			rejected("Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = error "+
				"getting list of preferred allocation devices: unable to get device link information: error getting device handle, which is "+
				"unexpected")),
		"device allocation: no healthy GPU": withPods(1, on,
			rejected("Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected")),
		"device allocation: another vendor's": withPods(1, on,
			rejected("Allocate failed due to previously allocated devices are no longer healthy; cannot allocate unhealthy devices "+
				"gpu.intel.com/i915, which is unexpected")),
		"device allocation: unregistered": withPods(1, on,
			rejected("Allocate failed due to cannot allocate unregistered device amd.com/gpu, which is unexpected")),
		"device allocation: MIG": withPods(1, on,
			rejected("Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/mig-1g.5gb, which is "+
				"unexpected")),
		"device allocation: a rail": withPods(1, withRail, on,
			rejected("Allocate failed due to no healthy devices present; cannot allocate unhealthy devices openshift.io/eno5np0rdma, which is "+
				"unexpected")),
		"device allocation: a rail without name": withPods(1, withRail, on,
			rejected("Allocate failed due to rpc error: code = Unknown desc = invalid allocation request: 0000:03:00.2 is not in the pool, which "+
				"is unexpected")),
		"device allocation: no words": withPods(1, on,
			rejected("Allocate failed due to rpc error: code = Unavailable desc = transport is closing, which is unexpected")),
		"device allocation: no words, and a rail": func() Snapshot {
			s := withPods(1, on, rejected("Allocate failed due to rpc error: code = Unavailable desc = transport is closing, which is unexpected"))
			s.StatefulSet.Spec.Template.Spec.Containers[0].Resources.Limits["openshift.io/eno5np0rdma"] = resource.MustParse("1")
			return s
		}(),
		"refused for something else": withPods(1, on, rejected("Pod was rejected: failed to write checkpoint file: no space left on device")),
		"device allocation, recreated": func() Snapshot {
			s := snapshotOf(1)
			s.event("Pod", "ml-dev-env-0", "UnexpectedAdmissionError", "Allocate failed due to requested number of devices unavailable for "+
				"nvidia.com/gpu. Requested: 4, Available: 2, which is unexpected")
			s.pod(0, func(p *corev1.Pod) { p.UID = "newer" })
			return s
		}(),
		"does not end": withPods(1, on, func(p *corev1.Pod) {
			at := metav1.NewTime(now.Add(-2 * time.Minute))
			p.DeletionTimestamp = &at
		}),
		"all well":          withPods(2, isReady),
		"nothing known yet": snapshotOf(2),
		"only a quota": {
			Quotas: []corev1.ResourceQuota{{Status: corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{gpu: resource.MustParse("1")}}}}},
	}
}
