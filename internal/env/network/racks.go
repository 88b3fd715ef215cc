package network

import (
	"context"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

// Racks are those of Kubernetes nodes, "" for an unknown one: by the label that the cluster file names, else by its
// pattern for names, else by the zone. Without the right to read nodes there are no labels.
func Racks(ctx context.Context, client kubernetes.Interface, file cluster.Nodes, names []string) []string {
	racks := make([]string, len(names))
	label := file.RackLabel
	if label == "" && file.RackPattern == "" {
		label = corev1.LabelTopologyZone
	}
	var pattern *regexp.Regexp
	if file.RackPattern != "" {
		pattern = regexp.MustCompile(file.RackPattern) // the cluster file was checked
	}
	labelled := map[string]string{}
	if label != "" {
		if list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: label}); err == nil {
			for _, node := range list.Items {
				labelled[node.Name] = node.Labels[label]
			}
		}
	}
	for i, name := range names {
		racks[i] = labelled[name]
		if racks[i] == "" && pattern != nil {
			if match := pattern.FindStringSubmatch(name); match != nil {
				racks[i] = match[1]
			}
		}
	}
	return racks
}

// Order is the order of the nodes' ranks. It makes the nodes of one rack neighbours, so that a ring leaves racks seldom.
// Node 0, the master, stays first, with its rack; nodes without a known rack come last. It is nil if the ordinals' order
// is as good.
//
// Measured on H100 nodes in several racks: with 79% of a ring's hops between racks, rings reached 54 to 84% of the
// bandwidth that they reached with 14%.
func Order(racks []string) []int {
	order := make([]int, len(racks))
	first := map[string]int{"": len(racks)}
	for node, rack := range racks {
		order[node] = node
		if _, seen := first[rack]; !seen {
			first[rack] = node
		}
	}
	if len(racks) > 0 && racks[0] == "" {
		first[""] = 0
	}
	slices.SortStableFunc(order, func(a, b int) int { return first[racks[a]] - first[racks[b]] })
	if slices.IsSorted(order) {
		return nil
	}
	return order
}
