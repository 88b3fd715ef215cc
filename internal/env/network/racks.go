package network

import (
	"context"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

// Racks are those of Kubernetes nodes, "" for one whose rack is not known: by the label
// that the cluster file names, else by its pattern on names, else by the zone. Who may
// not read nodes goes without labels.
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
