package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// WaitGone waits until the namespace has no StatefulSet and then no pod with the labels, in this order, because an existing
// StatefulSet recreates its pods. progress gets the remaining pods after every change and at least every ten seconds; nil
// while the StatefulSet exists.
//
// After ctx's deadline the error is TeardownIncomplete and names what is left.
func WaitGone(ctx context.Context, client kubernetes.Interface, namespace, selector string, progress func(left []*corev1.Pod)) error {
	options := metav1.ListOptions{LabelSelector: selector}
	var left []string
	err := Until(ctx, "statefulsets of "+selector+" in "+namespace, client.AppsV1().StatefulSets(namespace), options,
		func(sets []*appsv1.StatefulSet) (bool, error) {
			left = namesOf("statefulset ", sets)
			if len(sets) > 0 {
				progress(nil)
			}
			return len(sets) == 0, nil
		})
	if err == nil {
		err = Until(ctx, "pods of "+selector+" in "+namespace, client.CoreV1().Pods(namespace), options,
			func(pods []*corev1.Pod) (bool, error) {
				left = nil
				for _, pod := range pods {
					text := "pod " + pod.Name
					if pod.Spec.NodeName != "" {
						text += " on " + pod.Spec.NodeName + ", whose GPUs cannot be confirmed free"
					}
					left = append(left, text)
				}
				if len(pods) > 0 {
					progress(pods)
				}
				return len(pods) == 0, nil
			})
	}
	// ctx decides, because a deadline may have its own cause.
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && len(left) > 0 {
		return fail.Advise(fail.Because(fail.TeardownIncomplete,
			fmt.Errorf("waiting until nothing of %s is left in %s: not deleted: %s: %w", selector, namespace, strings.Join(left, ", "), err)),
			"oc get statefulsets,pods -n %s -l %s -o wide", namespace, selector)
	}
	return err
}

func namesOf[T metav1.Object](prefix string, objects []T) []string {
	names := make([]string, 0, len(objects))
	for _, object := range objects {
		names = append(names, prefix+object.GetName())
	}
	return names
}
