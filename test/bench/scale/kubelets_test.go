// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// kubeletsVariable names the environment variable with the number of nodes for which TestKubelets stands in.
const kubeletsVariable = "MLENV_BENCH_KUBELETS"

// startKubelets starts the stand-in for kubelets in a process of its own, and waits until all nodes are ready. end ends it. The process
// leaves the cores to the control plane, because on a cluster each kubelet and agent has a machine of its own.
func startKubelets(b *testing.B, count int) (end func()) {
	b.Helper()
	kubelets := exec.CommandContext(b.Context(), "nice", "-n", "10", os.Args[0], "-test.run=^TestKubelets$", "-test.timeout=0")
	kubelets.Env = append(os.Environ(), fmt.Sprint(kubeletsVariable, "=", count))
	kubelets.Stdout, kubelets.Stderr = os.Stderr, os.Stderr
	input, err := kubelets.StdinPipe()
	check(b, err)
	read, write, err := os.Pipe()
	check(b, err)
	defer read.Close()
	kubelets.ExtraFiles = []*os.File{write}
	check(b, kubelets.Start())
	write.Close()
	var ready bool
	check(b, json.NewDecoder(read).Decode(&ready))
	return func() {
		input.Close()
		if err := kubelets.Wait(); err != nil {
			b.Errorf("the stand-in for kubelets ended with %v", err)
		}
	}
}

// TestKubelets stands in for the kubelets of a benchmark until its standard input ends. It writes what kubelets write: nodes with
// heartbeats, and the status of pods. The container of each pod is an agent in this process at the pod's address, and the pod is ready
// once the agent listens. Init containers are over at once; probes, images and volumes take no time.
func TestKubelets(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv(kubeletsVariable))
	if err != nil {
		t.Skip("only for the benchmark")
	}
	k := &kubelets{t: t, client: adminClient(t), dir: t.TempDir(), starting: make(chan struct{}, startsAtOnce),
		agents: map[types.UID]*agenttest.Node{}, environments: map[types.UID]podEnvironment{}}
	ctx, cancel := context.WithCancel(t.Context())
	for i := range count {
		k.must(k.addNode(ctx, hostName(i)))
	}
	var working sync.WaitGroup
	working.Go(func() { k.beat(ctx, count) })
	working.Go(func() { k.follow(ctx) })
	if err := json.NewEncoder(os.NewFile(3, "pipe")).Encode(true); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	working.Wait()
	k.pods.Wait()
}

// hostName returns the name of a Kubernetes node.
func hostName(i int) string { return fmt.Sprintf("moc-r4pcc%03du%02d", i/32, i%32) }

// kubelets stands in for all kubelets.
type kubelets struct {
	t      *testing.T
	client *kubernetes.Clientset
	dir    string
	// pods waits for the work on pods.
	pods sync.WaitGroup
	// starting holds a value for each agent that starts.
	starting chan struct{}

	mu sync.Mutex
	// agents has an agent for each pod that was started, nil until it runs.
	agents map[types.UID]*agenttest.Node
	// environments are known by the UIDs of their StatefulSets.
	environments map[types.UID]podEnvironment
}

// podEnvironment is what an agent knows of its environment.
type podEnvironment struct {
	certificates objects.Certificates
	nodes        int
}

// startsAtOnce is how many agents start at the same time. All of them would keep the control plane from the cores.
const startsAtOnce = 8

// must reports an error that the end of the benchmark does not explain.
func (k *kubelets) must(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		k.t.Error(err)
	}
}

// heartbeat is the time between two renewals of a node's Lease, twice a kubelet's: one API server shares this machine with all nodes.
const heartbeat = 20 * time.Second

func (k *kubelets) addNode(ctx context.Context, name string) error {
	amount := resource.MustParse
	now := metav1.Now()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name,
		"kubernetes.io/os": "linux"}}}
	made, err := k.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.ResourceVersion = "" // controllers may have written meanwhile
	made.Status.Capacity = corev1.ResourceList{"cpu": amount("192"), "memory": amount("2Ti"), "pods": amount("250"),
		"ephemeral-storage": amount("1Ti"), "nvidia.com/gpu": amount(fmt.Sprint(ranksPerNode))}
	made.Status.Allocatable = made.Status.Capacity
	made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		LastHeartbeatTime: now, LastTransitionTime: now}}
	if _, err := k.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: new(int32(300)),
			RenewTime: &metav1.MicroTime{Time: now.Time}}}
	_, err = k.client.CoordinationV1().Leases(lease.Namespace).Create(ctx, lease, metav1.CreateOptions{})
	return err
}

// beat renews the nodes' Leases, one after the other.
func (k *kubelets) beat(ctx context.Context, count int) {
	ticker := time.NewTicker(heartbeat / time.Duration(count))
	defer ticker.Stop()
	for i := 0; ; i = (i + 1) % count {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
		_, err := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, hostName(i), types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		k.must(err)
	}
}

// follow works on each pod once when it has a node, and once when it is to be deleted.
func (k *kubelets) follow(ctx context.Context) {
	deleting := map[types.UID]bool{}
	for ctx.Err() == nil {
		w, err := k.client.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			k.must(err)
			return
		}
		for event := range w.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			switch {
			case !ok || pod.Spec.NodeName == "":
			case event.Type == watch.Deleted:
				k.pods.Go(func() { k.end(pod) })
			case pod.DeletionTimestamp != nil && !deleting[pod.UID]:
				deleting[pod.UID] = true
				k.pods.Go(func() { k.remove(ctx, pod) })
			case pod.DeletionTimestamp == nil && pod.Status.PodIP == "":
				if place, first := k.begins(pod); first {
					k.pods.Go(func() { k.must(k.run(ctx, pod, fmt.Sprintf("10.64.%d.%d", place>>8, place&255))) })
				}
			}
		}
	}
}

// begins reports whether the pod was not started before, and how many were.
func (k *kubelets) begins(pod *corev1.Pod) (place int, first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, begun := k.agents[pod.UID]; begun {
		return 0, false
	}
	k.agents[pod.UID] = nil
	return len(k.agents), true
}

// run starts the agent of a pod at an address, and then reports the pod as running.
func (k *kubelets) run(ctx context.Context, pod *corev1.Pod, address string) error {
	node, err := strconv.Atoi(pod.Labels["apps.kubernetes.io/pod-index"])
	if err != nil {
		return fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	k.starting <- struct{}{}
	defer func() { <-k.starting }()
	environment, err := k.environmentOf(ctx, pod)
	if err != nil {
		return err
	}
	ranks := &standIn{node: node, name: pod.Name}
	agent := agenttest.StartIn(k.t, agenttest.Pod{Node: node, Nodes: environment.nodes, Host: pod.Spec.NodeName, Address: address,
		Volumes: filepath.Join(k.dir, "claims"), Home: k.t.TempDir(), Certificates: environment.certificates}, ranks.wrap)
	k.mu.Lock()
	k.agents[pod.UID] = agent
	k.mu.Unlock()
	running := pod.DeepCopy()
	running.ResourceVersion, running.Status = "", statusOf(pod, address)
	_, err = k.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, running, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it is being deleted
		return nil
	}
	return err
}

// environmentOf returns the environment of a pod.
func (k *kubelets) environmentOf(ctx context.Context, pod *corev1.Pod) (podEnvironment, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	owner := pod.OwnerReferences[0]
	if known, found := k.environments[owner.UID]; found {
		return known, nil
	}
	set, err := k.client.AppsV1().StatefulSets(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return podEnvironment{}, err
	}
	names := env.Of(&kube.Clients{Namespace: pod.Namespace}, set.Name)
	server, err := k.client.CoreV1().Secrets(pod.Namespace).Get(ctx, names.ServerSecret, metav1.GetOptions{})
	if err != nil {
		return podEnvironment{}, err
	}
	client, err := k.client.CoreV1().Secrets(pod.Namespace).Get(ctx, names.ClientSecret, metav1.GetOptions{})
	if err != nil {
		return podEnvironment{}, err
	}
	k.environments[owner.UID] = podEnvironment{nodes: int(*set.Spec.Replicas), certificates: objects.Certificates{CA: server.Data["ca.crt"],
		ServerCert: server.Data["tls.crt"], ServerKey: server.Data["tls.key"], ClientCert: client.Data["tls.crt"],
		ClientKey: client.Data["tls.key"]}}
	return k.environments[owner.UID], nil
}

// statusOf returns the status of a pod that runs at an address.
func statusOf(pod *corev1.Pod, address string) corev1.PodStatus {
	now := metav1.Now()
	const image = "registry.test/image@sha256:0000000000000000000000000000000000000000000000000000000000000001"
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, HostIP: serverAddress,
		HostIPs: []corev1.HostIP{{IP: serverAddress}}, StartTime: &now, Conditions: pod.Status.Conditions}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady,
		corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: image,
			Ready: true, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now,
				FinishedAt: now}}})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: image,
			Ready: true, Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}})
	}
	return status
}

// remove ends the agent of a pod that is to be deleted, and then deletes the pod as a kubelet does.
func (k *kubelets) remove(ctx context.Context, pod *corev1.Pod) {
	k.end(pod)
	options := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	if err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options); !apierrors.IsNotFound(err) {
		k.must(err)
	}
}

func (k *kubelets) end(pod *corev1.Pod) {
	k.mu.Lock()
	agent := k.agents[pod.UID]
	k.agents[pod.UID] = nil
	k.mu.Unlock()
	if agent != nil {
		agent.End()
	}
}
