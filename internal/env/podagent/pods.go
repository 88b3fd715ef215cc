package podagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Pod is one in which an agent runs.
type Pod struct {
	Name      string `json:"name"`
	Container string `json:"container"`
	Node      string `json:"node"`
	IP        string `json:"ip"`
	GPUs      int    `json:"gpus"`
}

// Selection selects pods.
type Selection struct {
	// Pods are names with commas between them, or a label selector.
	Pods string
	// Container of each, "" for the pod's default one.
	Container string
}

func (s Selection) isSelector() bool { return strings.ContainsAny(s.Pods, "=!( ") }

// Check finds every mistake that needs no cluster.
func (s Selection) Check() error {
	if s.isSelector() {
		if _, err := labels.Parse(s.Pods); err != nil {
			return fmt.Errorf("--pods %q: %w: want names with commas between them, or a label selector", s.Pods, err)
		}
		return nil
	}
	names := strings.Split(s.Pods, ",")
	var problems []error
	if slices.Contains(names, "") {
		problems = append(problems, fmt.Errorf("--pods %q: a name is empty: want names with commas between them, or a label selector", s.Pods))
	}
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] && name != "" {
			problems = append(problems, fmt.Errorf("--pods %q: %s is named twice", s.Pods, name))
		}
		seen[name] = true
	}
	if len(names) < 2 {
		problems = append(problems, fmt.Errorf("--pods %q: one pod: want at least two, to have a network between them", s.Pods))
	}
	return errors.Join(problems...)
}

// Find gets the pods: by name in the given order, or by selector, sorted by name and number. Errors: InvalidInput with every
// problem of the pods, PermissionDenied.
func Find(ctx context.Context, client kubernetes.Interface, namespace string, s Selection) ([]Pod, error) {
	found, problems, err := s.get(ctx, client.CoreV1().Pods(namespace))
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("looking for pods %s in namespace %s: %w", s.Pods, namespace, err))
	}
	var pods []Pod
	for _, pod := range found {
		problem := unfit(pod)
		container, names := s.containerOf(pod)
		if container == nil {
			problem = errors.Join(problem, fmt.Errorf("pod %s: it has no container %s: want one of %s", pod.Name, s.Container, strings.Join(names, ", ")))
		} else if problem == nil {
			problem = notRunning(pod, container.Name)
		}
		if problem != nil {
			problems = append(problems, problem)
			continue
		}
		gpus := container.Resources.Limits["nvidia.com/gpu"]
		pods = append(pods, Pod{Name: pod.Name, Container: container.Name, Node: pod.Spec.NodeName, IP: pod.Status.PodIP, GPUs: int(gpus.Value())})
	}
	if s.isSelector() && len(found) < 2 {
		problems = append(problems, fmt.Errorf("selector %s: %s: want at least two pods, to have a network between them", s.Pods, humanize.Count(len(found), "pod")))
	}
	if len(problems) > 0 {
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for pods %s in namespace %s: %w", s.Pods, namespace, errors.Join(problems...)),
			"oc get pods -n %s --show-labels", namespace)
	}
	return pods, nil
}

func (s Selection) get(ctx context.Context, pods typed.PodInterface) (found []corev1.Pod, problems []error, err error) {
	if s.isSelector() {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: s.Pods})
		if err != nil {
			return nil, nil, err
		}
		// Pods that have ended, such as those of a Job, do not count.
		found = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return kube.HasEnded(&p) })
		slices.SortFunc(found, func(a, b corev1.Pod) int { return humanize.Natural(a.Name, b.Name) })
		return found, nil, nil
	}
	for _, name := range strings.Split(s.Pods, ",") {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			problems = append(problems, fmt.Errorf("pod %s: not found", name))
		case err != nil:
			return nil, nil, err
		default:
			found = append(found, *pod)
		}
	}
	return found, problems, nil
}

func unfit(pod corev1.Pod) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s: it is being deleted", pod.Name)
	case pod.Status.Phase != corev1.PodRunning:
		return fmt.Errorf("pod %s: it is %s: want Running", pod.Name, cmp.Or(pod.Status.Phase, corev1.PodPending))
	case pod.Status.PodIP == "":
		return fmt.Errorf("pod %s: it has no address", pod.Name)
	}
	return nil
}

func notRunning(pod corev1.Pod, container string) error {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name != container || status.State.Running != nil {
			continue
		}
		why := "does not run"
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" {
			why = "waits: " + waiting.Reason
		}
		return fmt.Errorf("pod %s: container %s %s", pod.Name, container, why)
	}
	return nil
}

const defaultContainer = "kubectl.kubernetes.io/default-container"

// containerOf returns the selected container, or nil and the names of those that the pod has.
func (s Selection) containerOf(pod corev1.Pod) (_ *corev1.Container, names []string) {
	wanted := cmp.Or(s.Container, pod.Annotations[defaultContainer])
	for i, container := range pod.Spec.Containers {
		if wanted == "" || container.Name == wanted {
			return &pod.Spec.Containers[i], nil
		}
		names = append(names, container.Name)
	}
	return nil, names
}

// Allowed checks the rights that a check needs. Error: PermissionDenied with the missing ones and the commands that grant them.
// If the API server does not answer, the requests themselves will show it.
func Allowed(ctx context.Context, client kubernetes.Interface, namespace string, s Selection) error {
	look := "get"
	if s.isSelector() {
		look = "list"
	}
	var missing, grants []string
	user := ""
	for _, right := range []struct{ verb, resource string }{{look, "pods"}, {"create", "pods/exec"}, {"create", "pods/portforward"}} {
		resource, sub, _ := strings.Cut(right.resource, "/")
		allowed, err := kube.IMay(ctx, client, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: right.verb, Resource: resource, Subresource: sub})
		if err != nil {
			return ctx.Err()
		}
		if allowed {
			continue
		}
		if user == "" {
			user = kube.WhoAsks(ctx, client)
		}
		missing = append(missing, right.verb+" "+right.resource)
		grants = append(grants, kube.Grant(user, right.verb, right.resource, "", namespace))
	}
	if len(missing) == 0 {
		return nil
	}
	return fail.Advise(fail.Becausef(fail.PermissionDenied, "checking pods %s: %s may not %s in namespace %s", s.Pods, user, strings.Join(missing, ", "), namespace),
		"%s", strings.Join(grants, "\n"))
}
