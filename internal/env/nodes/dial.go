package nodes

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Dialer connects to the agents of environment name: inside the cluster by the pods' addresses, outside by the API
// server's port-forward.
func Dialer(clients *kube.Clients, namespace, name string) agent.Dialer {
	if clients.InCluster {
		return PodDialer(clients.Kube, namespace, name, agent.Port)
	}
	return func(ctx context.Context, node int) (net.Conn, error) {
		return kube.DialPod(ctx, clients, namespace, objects.NamesOf(name).PodName(node), agent.Port)
	}
}

// askTime bounds the question for an address: if the API server is away, the caller decides how long to try.
const askTime = 10 * time.Second

// PodDialer connects to the pod's address. It reads the address every time, because a replaced pod has another one.
// Errors: AgentUnreachable, PermissionDenied.
func PodDialer(client kubernetes.Interface, namespace, name string, port int) agent.Dialer {
	return func(ctx context.Context, node int) (net.Conn, error) {
		pod := objects.NamesOf(name).PodName(node)
		asking, cancel := context.WithTimeout(ctx, askTime)
		found, err := client.CoreV1().Pods(namespace).Get(asking, pod, metav1.GetOptions{})
		late := asking.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err != nil && late: // not the caller's deadline, which Retry looks for
			return nil, kube.Unreachable(namespace, pod, fmt.Errorf("the API server did not answer within %s", askTime))
		case apierrors.IsNotFound(err):
			return nil, kube.Unreachable(namespace, pod, err)
		case err != nil:
			return nil, kube.Problem(fmt.Errorf("getting pod %s/%s: %w", namespace, pod, err))
		case kube.HasEnded(found):
			return nil, kube.Unreachable(namespace, pod, fmt.Errorf("it has ended: %s %s", found.Status.Phase, found.Status.Reason))
		case found.Status.PodIP == "":
			return nil, kube.Unreachable(namespace, pod, fmt.Errorf("it has no address yet: %s", found.Status.Phase))
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(found.Status.PodIP, strconv.Itoa(port)))
		if err != nil {
			return nil, kube.Unreachable(namespace, pod, err)
		}
		return conn, nil
	}
}
