// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// Racks returns the rack of each Kubernetes node, "" for an unknown one: by the label that the cluster file names, else by its pattern
// for names, else by the topology of Kueue's queue, else by region and zone. A rack of several levels has the outermost
// first, as in block/rack. Without the right to read nodes there are no labels.
func Racks(ctx context.Context, client kubernetes.Interface, file cluster.Nodes, queue kueue.Queue, names []string) []string {
	var labels []string
	switch {
	case file.RackLabel != "":
		labels = []string{file.RackLabel}
	case file.RackPattern == "":
		labels = queue.Levels(ctx, client)
		if len(labels) == 0 {
			labels = []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone}
		}
	}
	labelled := map[string]string{}
	if len(labels) > 0 {
		// All have the innermost label.
		if list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: labels[len(labels)-1]}); err == nil {
			for _, node := range list.Items {
				labelled[node.Name] = rackOf(node.Labels, labels)
			}
		}
	}
	var pattern *regexp.Regexp
	if file.RackPattern != "" {
		pattern = regexp.MustCompile(file.RackPattern) // the cluster file was checked
	}
	found := make([]string, len(names))
	for i, name := range names {
		found[i] = labelled[name]
		if found[i] == "" && pattern != nil {
			if match := pattern.FindStringSubmatch(name); match != nil {
				found[i] = match[1]
			}
		}
	}
	return found
}

func rackOf(has map[string]string, labels []string) string {
	var levels []string
	for _, label := range labels {
		if value := has[label]; value != "" {
			levels = append(levels, value)
		}
	}
	return strings.Join(levels, racks.Separator)
}
