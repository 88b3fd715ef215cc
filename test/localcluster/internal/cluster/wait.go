// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Maximum times of the parts of a start on a slow machine.
const (
	apiTimeout  = 2 * time.Minute
	nodeTimeout = 3 * time.Minute
	readyWait   = 3 * time.Minute
)

func adminClient() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", topology.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 100, 200
	return kubernetes.NewForConfig(config)
}

// waitAPI polls the API server until it is ready. Before that, a watch is not possible.
func waitAPI(ctx context.Context) error {
	client, err := adminClient()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	var last error
	for {
		body, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for the API server at %s: %w (last answer: %w)", topology.APIServerURL, ctx.Err(), last)
		}
		last = fmt.Errorf("%w %s", err, body)
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// waitContainerd waits until each node's containerd answers: a kubelet exits if it finds none. No event reports when
// containerd listens.
func waitContainerd(ctx context.Context, nodes []topology.Netns) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	for _, n := range nodes {
		socket := filepath.Join(nodeBinds(n)[filepath.Dir(containerdSocket)], filepath.Base(containerdSocket))
		for {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
			if err == nil {
				conn.Close()
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting for containerd of %s: %w: %w", n.Name, ctx.Err(), err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

// waitNodes watches until every node is ready and offers its healthy GPUs and its NICs. If it has just started a node's
// kubelet, it ignores older reports of the node.
func waitNodes(ctx context.Context, options Options, started map[string]time.Time) error {
	client, err := adminClient()
	if err != nil {
		return err
	}
	all := map[string]wanted{}
	missing := map[string]string{}
	for _, n := range options.nodes() {
		w := wanted{component: "kubelet@" + n.Name, gpus: int64(options.gpusOf(n)), nics: options.layoutOf(n).Offers()}
		for _, f := range options.Faults {
			if f.Node == n.Name && f.Fault.Kind == gpu.Xid {
				w.gpus--
			}
		}
		all[n.Node] = w
		missing[n.Node] = "not registered"
	}
	nodes := client.CoreV1().Nodes()
	return until(ctx, nodeTimeout, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}, &corev1.Node{}, func(object runtime.Object) (done bool) {
		node := object.(*corev1.Node)
		w, ours := all[node.Name]
		if why := nodeMissing(node, w, started[w.component]); ours && why != "" {
			missing[node.Name] = why
		} else {
			delete(missing, node.Name)
		}
		return len(missing) == 0
	}, func() string { return fmt.Sprint("nodes: ", missing) })
}

// wanted has the resources that a node must offer, and the name of its kubelet's component.
type wanted struct {
	component string
	gpus      int64
	nics      map[string]int64
}

func nodeMissing(node *corev1.Node, want wanted, started time.Time) string {
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status != corev1.ConditionTrue {
			return c.Message
		}
		// The API's times are whole seconds.
		if c.LastHeartbeatTime.Time.Before(started.Truncate(time.Second)) {
			return "its kubelet, just started, has not reported"
		}
		have := node.Status.Allocatable["nvidia.com/gpu"]
		if have.Value() != want.gpus {
			return fmt.Sprintf("%d of %d GPUs allocatable", have.Value(), want.gpus)
		}
		for name, amount := range want.nics {
			have := node.Status.Allocatable[corev1.ResourceName(name)]
			if have.Value() != amount {
				return fmt.Sprintf("%d of %d %s allocatable", have.Value(), amount, name)
			}
		}
		return ""
	}
	return "no Ready condition"
}

// waitDeployments watches until every deployment of the cluster itself is available.
func waitDeployments(ctx context.Context, options Options) error {
	client, err := adminClient()
	if err != nil {
		return err
	}
	missing := map[string]bool{
		"kube-system/coredns": true,
	}
	if !options.NoTekton {
		for _, name := range []string{"pipelines-controller", "pipelines-webhook", "events-controller"} {
			missing["tekton-pipelines/tekton-"+name] = true
		}
		missing["tekton-pipelines-resolvers/tekton-pipelines-remote-resolvers"] = true
	}
	if options.Kueue != "" {
		missing["kueue-system/kueue-controller-manager"] = true
	}
	if options.Peers {
		for _, name := range []string{"kubeflow-system/kubeflow-trainer-controller-manager", "jobset-system/jobset-controller-manager",
			"mpi-operator/mpi-operator"} {
			missing[name] = true
		}
	}
	if options.Triggers {
		for _, name := range []string{"controller", "webhook", "core-interceptors"} {
			missing["tekton-pipelines/tekton-triggers-"+name] = true
		}
	}
	wanted, deployments := maps.Clone(missing), client.AppsV1().Deployments("")
	return until(ctx, readyWait, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return deployments.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return deployments.Watch(ctx, o)
		},
	}, &appsv1.Deployment{}, func(object runtime.Object) (done bool) {
		d := object.(*appsv1.Deployment)
		name := d.Namespace + "/" + d.Name
		if available(d) {
			delete(missing, name)
		} else if wanted[name] {
			missing[name] = true
		}
		return len(missing) == 0
	}, func() string {
		names := strings.Join(slices.Sorted(maps.Keys(missing)), " ")
		return "deployments not available: " + names + "\n" + unreadyPods(client, missing)
	})
}

// waitReady waits for the services on top of the control plane.
func waitReady(ctx context.Context, options Options) error {
	if err := waitDeployments(ctx, options); err != nil {
		return err
	}
	if err := waitBuildAPI(ctx); err != nil {
		return err
	}
	return waitAdmission(ctx)
}

// waitAdmission waits until the stand-in for OpenShift's admission listens. Without it, the API server cannot create
// pods and users' namespaces.
func waitAdmission(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp", topology.AdmissionAddress)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for OpenShift's admission at %s: %w (last answer: %w)", topology.AdmissionAddress, ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// waitBuildAPI polls the API server until it serves the aggregated APIs.
func waitBuildAPI(ctx context.Context) error {
	client, err := adminClient()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	for _, group := range []string{"build.openshift.io", "image.openshift.io"} {
		for {
			_, err := client.Discovery().ServerResourcesForGroupVersion(group + "/v1")
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting for the API %s: %w (last answer: %w)", group, ctx.Err(), err)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

// unreadyPods explains why containers in the deployments' namespaces are not ready, with the last lines of their logs.
func unreadyPods(client kubernetes.Interface, deployments map[string]bool) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	namespaces := map[string]bool{}
	for d := range deployments {
		namespace, _, _ := strings.Cut(d, "/")
		namespaces[namespace] = true
	}
	var text strings.Builder
	for namespace := range namespaces {
		pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, pod := range pods.Items {
			for _, c := range pod.Status.ContainerStatuses {
				if c.Ready {
					continue
				}
				state := "running, not ready"
				if w := c.State.Waiting; w != nil {
					state = w.Reason + " " + w.Message
				}
				lines := int64(8)
				log, err := client.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name, TailLines: &lines}).DoRaw(ctx)
				if err != nil {
					log = []byte(err.Error())
				}
				fmt.Fprintf(&text, "pod %s/%s: %s\n%s\n", namespace, pod.Name, state, log)
			}
			if len(pod.Status.ContainerStatuses) == 0 {
				for _, c := range pod.Status.Conditions {
					if c.Status != corev1.ConditionTrue {
						fmt.Fprintf(&text, "pod %s/%s: %s: %s\n", namespace, pod.Name, c.Reason, c.Message)
					}
				}
			}
		}
	}
	return text.String()
}

func available(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas == *d.Spec.Replicas &&
		d.Status.AvailableReplicas == *d.Spec.Replicas && d.Status.Replicas == *d.Spec.Replicas
}

// until watches objects until done returns true for one of them.
func until(ctx context.Context, timeout time.Duration, lw cache.ListerWatcher, kind runtime.Object,
	done func(runtime.Object) bool, missing func() string,
) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := watchtools.UntilWithSync(ctx, lw, kind, nil, func(event watch.Event) (bool, error) {
		return event.Type != watch.Deleted && done(event.Object), nil
	})
	if err != nil {
		return fmt.Errorf("%w after %s: %s", err, time.Since(start).Round(time.Second), missing())
	}
	return nil
}
