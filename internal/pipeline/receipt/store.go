// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Labels and keys of a receipt's ConfigMap.
const (
	// Label marks receipts.
	Label = project.LabelPrefix + "receipt"
	key   = "receipt.json"

	// Keep is how many receipts of one environment are kept.
	Keep = 30
	// maxSize keeps a receipt within what a ConfigMap holds, 1 MiB.
	maxSize = 900 << 10
)

const suffix = "-receipt"

// Name returns the name of a run's ConfigMap.
func Name(of string) string { return of + suffix }

// Write stores the receipt and replaces an earlier one of the run.
func Write(ctx context.Context, client kubernetes.Interface, r Receipt) error {
	content, err := encode(r)
	if err != nil {
		return err
	}
	return kube.Apply(ctx, client, &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: Name(r.Run), Namespace: r.Namespace, Labels: labelsOf(r.Environment, r.Schedule, r.Verdict)},
		Data:       map[string]string{key: string(content)},
	})
}

// labelsOf returns the labels of a ConfigMap.
func labelsOf(environment, schedule string, verdict Verdict) map[string]string {
	labels := map[string]string{
		"app.kubernetes.io/managed-by": "ml-dev-env",
		"app.kubernetes.io/name":       "ml-dev-env",
		Label:                          "true",
		project.EnvironmentLabel:       environment,
		verdictLabel:                   string(verdict),
	}
	if schedule != "" {
		labels[run.ScheduleLabel] = schedule
	}
	return labels
}

// Read returns the receipt of a run that has ended. The error is NotFound for a run in progress. Reason of one that is not valid:
// InvalidInput.
func Read(ctx context.Context, client kubernetes.Interface, namespace, name string) (Receipt, error) {
	m, err := ReadJournal(ctx, client, namespace, name)
	switch {
	case err != nil:
		return Receipt{}, err
	case m.Receipt == nil:
		missing := apierrors.NewNotFound(corev1.Resource("configmaps"), Name(name))
		return Receipt{}, fmt.Errorf("getting the receipt of %s/%s: the run has not written it yet: %w", namespace, name, missing)
	}
	return *m.Receipt, nil
}

// runUID is what a UID can be, which becomes part of a path.
var runUID = regexp.MustCompile(`^[A-Za-z0-9-]*$`)

// decode checks a receipt, because anyone who may write ConfigMaps may have written it. It takes the names of the run and the
// namespace from the ConfigMap's metadata.
func decode(config *corev1.ConfigMap) (Receipt, error) {
	var r Receipt
	err := json.Unmarshal([]byte(config.Data[key]), &r)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return Receipt{}, fail.Becausef(fail.InvalidInput, "reading receipt %s/%s: %w", config.Namespace, config.Name, err)
	}
	r.Run, r.Namespace = strings.TrimSuffix(config.Name, suffix), config.Namespace
	return r, nil
}

func (r Receipt) check() error {
	if r.Verdict != "" && r.Verdict != Succeeded && r.Verdict != Failed {
		return fmt.Errorf("verdict %q: want %s or %s", r.Verdict, Succeeded, Failed)
	}
	if !runUID.MatchString(r.RunUID) {
		return fmt.Errorf("runUID %q: want a UID", r.RunUID)
	}
	for _, node := range r.Nodes {
		if node.Node < 0 {
			return fmt.Errorf("node %d: want at least 0", node.Node)
		}
	}
	for _, rank := range r.Ranks {
		if rank.Rank < 0 || rank.Node < 0 {
			return fmt.Errorf("rank %d on node %d: want at least 0", rank.Rank, rank.Node)
		}
	}
	return nil
}

// List returns the receipts of an environment, "" for all of the namespace, the newest run first. It skips runs in progress, and
// receipts that are not valid; its error names them.
func List(ctx context.Context, client kubernetes.Interface, namespace, environment string) ([]Receipt, error) {
	found, err := newestFirst(ctx, client, namespace, environment)
	if err != nil {
		return nil, err
	}
	var all []Receipt
	var errs []error
	for i := range found {
		m, err := parseJournal(&found[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if m.Receipt != nil {
			all = append(all, *m.Receipt)
		}
	}
	slices.SortStableFunc(all, func(a, b Receipt) int { return b.Started.Compare(a.Started) })
	return all, errors.Join(errs...)
}

// Latest returns the newest receipt of an environment; ok is false if there is none.
func Latest(ctx context.Context, client kubernetes.Interface, namespace, environment string) (r Receipt, ok bool, err error) {
	all, err := List(ctx, client, namespace, environment)
	if len(all) == 0 {
		return r, false, err
	}
	return all[0], true, nil
}

// newestFirst returns the ConfigMaps of an environment, "" for all of the namespace.
func newestFirst(ctx context.Context, client kubernetes.Interface, namespace, environment string) ([]corev1.ConfigMap, error) {
	selector := Label + "=true"
	if environment != "" {
		selector += "," + project.EnvironmentLabel + "=" + environment
	}
	return selected(ctx, client, namespace, selector)
}

// selected returns the ConfigMaps with the labels, the newest first.
func selected(ctx context.Context, client kubernetes.Interface, namespace, selector string) ([]corev1.ConfigMap, error) {
	found, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing receipts in %s: %w", namespace, err))
	}
	slices.SortFunc(found.Items, func(a, b corev1.ConfigMap) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return found.Items, nil
}

// Prune deletes the oldest receipts of an environment beyond Keep. It counts the receipts of each schedule, and the receipts
// without one (""), apart, so that other runs do not delete the history of a schedule, and those of trainings in a kept environment.
func Prune(ctx context.Context, client kubernetes.Interface, namespace, environment, schedule string, kept bool) error {
	found, err := newestFirst(ctx, client, namespace, environment)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(c corev1.ConfigMap) bool {
		return c.Labels[run.ScheduleLabel] != schedule || c.Labels[verdictLabel] == unfinished || beginningOf(c).Kept != kept
	})
	var errs []error
	for _, old := range found[min(Keep, len(found)):] {
		errs = append(errs, remove(ctx, client, &old))
	}
	return errors.Join(errs...)
}

// Delete deletes a receipt that was read, unless another run of its name has replaced it.
func Delete(ctx context.Context, client kubernetes.Interface, r Receipt) error {
	found, err := client.CoreV1().ConfigMaps(r.Namespace).Get(ctx, Name(r.Run), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return kube.Problem(fmt.Errorf("getting the receipt of %s/%s: %w", r.Namespace, r.Run, err))
	}
	if runUIDOf(found) != r.RunUID {
		return fail.Becausef(fail.InvalidInput, "deleting receipt %s/%s: it has changed meanwhile", r.Namespace, found.Name)
	}
	return remove(ctx, client, found)
}

func remove(ctx context.Context, client kubernetes.Interface, config *corev1.ConfigMap) error {
	err := client.CoreV1().ConfigMaps(config.Namespace).Delete(ctx, config.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &config.UID}})
	return kube.Deleted("receipt "+config.Namespace+"/"+config.Name, err)
}
