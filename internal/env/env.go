// SPDX-License-Identifier: Apache-2.0

// Package env is the environment that a step or a command works with: its names and objects, its Lease and its nodes.
package env

import (
	"context"
	"fmt"
	"log/slog"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Environment is the environment of one name in one namespace, whether it exists or not.
type Environment struct {
	names.Names
	clients *kube.Clients
}

// Of returns the environment of that name in the clients' namespace.
func Of(clients *kube.Clients, name string) Environment {
	return Environment{names.Of(clients.Namespace, name), clients}
}

// Lease takes, finds and releases the environment's Lease.
func (e Environment) Lease(log *slog.Logger) lease.Client {
	return lease.New(e.clients, e.Names, log)
}

// WorkspaceOfRanks returns the path at which the nodes mount the workspace.
func (e Environment) WorkspaceOfRanks() string { return agent.Workspace }

// StatefulSet reads the environment's StatefulSet.
func (e Environment) StatefulSet(ctx context.Context) (*appsv1.StatefulSet, error) {
	return e.clients.Kube.AppsV1().StatefulSets(e.Namespace).Get(ctx, e.Names.StatefulSet, metav1.GetOptions{})
}

// Pod reads the pod of a node.
func (e Environment) Pod(ctx context.Context, node int) (*corev1.Pod, error) {
	return e.clients.Kube.CoreV1().Pods(e.Namespace).Get(ctx, e.PodName(node), metav1.GetOptions{})
}

// Pods lists the pods of all nodes.
func (e Environment) Pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := e.clients.Kube.CoreV1().Pods(e.Namespace).List(ctx, e.selected())
	if err != nil {
		return nil, fmt.Errorf("listing the pods of environment %s: %w", e, err)
	}
	return list.Items, nil
}

// WatchPods calls done with the pods of all nodes after every change, as kube.WatchUntil does.
func (e Environment) WatchPods(ctx context.Context, done func([]*corev1.Pod) (bool, error)) error {
	return kube.WatchUntil(ctx, "the pods of environment "+e.Name, e.clients.Kube.CoreV1().Pods(e.Namespace), e.selected(), done)
}

// WaitGone waits until the environment has no StatefulSet and no pod, as kube.WaitGone does.
func (e Environment) WaitGone(ctx context.Context, progress func(left []*corev1.Pod)) error {
	return kube.WaitGone(ctx, e.clients.Kube, e.Namespace, e.Selector(), progress)
}

// Selector returns the label selector of the environment's pods, and of all its objects.
func (e Environment) Selector() string { return names.Selector(e.Name).String() }

func (e Environment) selected() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: e.Selector()}
}
