package receipt

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// List are all receipts of a namespace, by the names of their runs.
func List(ctx context.Context, client kubernetes.Interface, namespace string) (map[string]Receipt, error) {
	found, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: Label + "=true"})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing receipts in %s: %w", namespace, err))
	}
	receipts := map[string]Receipt{}
	for _, one := range found.Items {
		var r Receipt
		if err := json.Unmarshal([]byte(one.Data[key]), &r); err != nil {
			return nil, fmt.Errorf("reading receipt %s/%s: %w", namespace, one.Name, err)
		}
		receipts[r.Run] = r
	}
	return receipts, nil
}
