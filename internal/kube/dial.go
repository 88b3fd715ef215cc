package kube

import (
	"context"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// NodeDialer reaches the nodes of environment name: by their addresses in the
// cluster, through the API server from outside.
func NodeDialer(clients *Clients, namespace, name string) agent.Dialer {
	if clients.InCluster {
		return PodDialer(clients.Kube, namespace, name)
	}
	return ForwardDialer(clients, namespace, name)
}

// PodDialer connects to the pod's address. It asks for the address every time,
// because a pod that was replaced has another one. Errors: AgentUnreachable,
// PermissionDenied.
func PodDialer(client kubernetes.Interface, namespace, name string) agent.Dialer {
	return podDialer(client, namespace, name, agent.Port)
}

func podDialer(client kubernetes.Interface, namespace, name string, port int) agent.Dialer {
	return func(ctx context.Context, node int) (net.Conn, error) {
		pod := podName(name, node)
		found, err := client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, unreachable(namespace, pod, err)
		case err != nil:
			return nil, Problem(fmt.Errorf("getting pod %s/%s: %w", namespace, pod, err))
		case found.Status.Phase == corev1.PodFailed || found.Status.Phase == corev1.PodSucceeded:
			return nil, unreachable(namespace, pod, fmt.Errorf("it has ended: %s %s", found.Status.Phase, found.Status.Reason))
		case found.Status.PodIP == "":
			return nil, unreachable(namespace, pod, fmt.Errorf("it has no address yet: %s", found.Status.Phase))
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(found.Status.PodIP, strconv.Itoa(port)))
		if err != nil {
			return nil, unreachable(namespace, pod, err)
		}
		return conn, nil
	}
}

func podName(environment string, node int) string {
	return environment + "-" + strconv.Itoa(node)
}

func unreachable(namespace, pod string, err error) error {
	return fail.Advise(fail.Because(fail.AgentUnreachable, fmt.Errorf("connecting to the agent of pod %s/%s: %w", namespace, pod, err)),
		"oc get pod %s -n %s -o wide", pod, namespace)
}
