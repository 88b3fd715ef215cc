package receipt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// Labels and keys of a receipt's ConfigMap.
const (
	// Label marks receipts.
	Label = "ml-dev-env/receipt"
	key   = "receipt.json"
	// Keep is how many receipts of one environment are kept.
	Keep = 30
	// maxSize keeps a receipt within what a ConfigMap holds, 1 MiB.
	maxSize = 900 << 10
)

// Name is that of a run's ConfigMap.
func Name(of string) string { return of + "-receipt" }

// Write stores the receipt, in place of an earlier one of the run.
func Write(ctx context.Context, client kubernetes.Interface, r Receipt) error {
	content, err := encode(r)
	if err != nil {
		return err
	}
	labels := map[string]string{
		"app.kubernetes.io/managed-by": "ml-dev-env",
		"app.kubernetes.io/name":       "ml-dev-env",
		Label:                          "true",
		"ml-dev-env/environment":       r.Environment,
		"ml-dev-env/verdict":           string(r.Verdict),
	}
	if r.Schedule != "" {
		labels[run.ScheduleLabel] = r.Schedule
	}
	return kube.Apply(ctx, client, &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: Name(r.Run), Namespace: r.Namespace, Labels: labels},
		Data:       map[string]string{key: string(content)},
	})
}

// encode leaves out what is long and least needed, until the rest fits.
func encode(r Receipt) ([]byte, error) {
	shorten := []func(){
		func() {
			r.Ranks = slices.Clone(r.Ranks)
			for i := range r.Ranks {
				r.Ranks[i].Tail = nil
			}
		},
		func() { r.Curve = nil },
	}
	for {
		content, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("encoding the receipt of %s: %w", r.Run, err)
		}
		if len(content) <= maxSize || len(shorten) == 0 {
			return content, nil
		}
		shorten[0]()
		shorten = shorten[1:]
	}
}

// Read finds the receipt of a run.
func Read(ctx context.Context, client kubernetes.Interface, namespace, name string) (Receipt, error) {
	var r Receipt
	found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, Name(name), metav1.GetOptions{})
	if err != nil {
		return r, fmt.Errorf("getting the receipt of %s/%s: %w", namespace, name, err)
	}
	if err := json.Unmarshal([]byte(found.Data[key]), &r); err != nil {
		return r, fmt.Errorf("reading the receipt of %s/%s: %w", namespace, name, err)
	}
	return r, nil
}

// Latest is the newest receipt of an environment; ok is false where there is none.
func Latest(ctx context.Context, client kubernetes.Interface, namespace, environment string) (r Receipt, ok bool, err error) {
	found, err := newestFirst(ctx, client, namespace, environment)
	if err != nil || len(found) == 0 {
		return r, false, err
	}
	if err := json.Unmarshal([]byte(found[0].Data[key]), &r); err != nil {
		return r, false, fmt.Errorf("reading receipt %s/%s: %w", namespace, found[0].Name, err)
	}
	return r, true, nil
}

// newestFirst are the receipts of an environment.
func newestFirst(ctx context.Context, client kubernetes.Interface, namespace, environment string) ([]corev1.ConfigMap, error) {
	selector := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: map[string]string{Label: "true", "ml-dev-env/environment": environment}})
	found, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing receipts in %s: %w", namespace, err))
	}
	slices.SortFunc(found.Items, func(a, b corev1.ConfigMap) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return found.Items, nil
}

// History are the receipts of an environment, of the newest run first. What cannot be read of
// one keeps no other from being returned.
func History(ctx context.Context, client kubernetes.Interface, namespace, environment string) ([]Receipt, error) {
	found, err := newestFirst(ctx, client, namespace, environment)
	if err != nil {
		return nil, err
	}
	var all []Receipt
	var errs []error
	for _, each := range found {
		var r Receipt
		if err := json.Unmarshal([]byte(each.Data[key]), &r); err != nil {
			errs = append(errs, fmt.Errorf("reading receipt %s/%s: %w", namespace, each.Name, err))
			continue
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b Receipt) int { return b.Started.Compare(a.Started) })
	return all, errors.Join(errs...)
}

// Prune deletes the oldest receipts of an environment beyond Keep: those that the schedule has
// left, or of "" those that no schedule has. So the history of a schedule does not go because people
// train.
func Prune(ctx context.Context, client kubernetes.Interface, namespace, environment, schedule string) error {
	found, err := newestFirst(ctx, client, namespace, environment)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(c corev1.ConfigMap) bool { return c.Labels[run.ScheduleLabel] != schedule })
	var errs []error
	for _, old := range found[min(Keep, len(found)):] {
		err := client.CoreV1().ConfigMaps(namespace).Delete(ctx, old.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, kube.Problem(fmt.Errorf("deleting receipt %s/%s: %w", namespace, old.Name, err)))
		}
	}
	return errors.Join(errs...)
}
