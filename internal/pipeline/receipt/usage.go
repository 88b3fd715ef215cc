// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	// UsageLabel marks the ConfigMaps with the usage of runs whose receipts were deleted.
	UsageLabel = "ml-dev-env/usage"
	// UsageKept is how long the usage of a run is kept after its receipt.
	UsageKept = 30 * 24 * time.Hour

	usageKey    = "usage.json"
	usageSuffix = "-usage"
)

// Usage is what remains of a receipt that is deleted: who used how many GPUs for what.
type Usage struct {
	Run         string    `json:"run"`
	RunUID      string    `json:"runUID,omitempty"`
	Namespace   string    `json:"namespace,omitempty"`
	Environment string    `json:"environment,omitempty"`
	User        string    `json:"user,omitempty"`
	Schedule    string    `json:"schedule,omitempty"`
	Repository  string    `json:"repository,omitempty"`
	Script      string    `json:"script,omitempty"`
	Verdict     Verdict   `json:"verdict"`
	Reason      string    `json:"reason,omitempty"`
	Started     time.Time `json:"started,omitzero"`
	Ended       time.Time `json:"ended,omitzero"`
	// Nodes has the number of GPUs on each Kubernetes node at the end of the run.
	Nodes   map[string]int `json:"nodes,omitempty"`
	Goodput Goodput        `json:"goodput"`
	// Faults are those of Kubernetes nodes that the run met.
	Faults []Fault `json:"faults,omitempty"`
}

// Usage returns the usage of the receipt's run. A receipt of an earlier version has no goodput yet.
func (r Receipt) Usage() Usage {
	u := Usage{
		Run: r.Run, RunUID: r.RunUID, Namespace: r.Namespace, Environment: r.Environment, User: truncate(r.User, 200),
		Schedule: r.Schedule, Repository: truncate(r.Repository, 500), Verdict: r.Verdict, Reason: string(r.Reason), Started: r.Started,
		Ended: r.lastTime(), Faults: r.NodeFaults(),
	}
	if g := cmp.Or(r.Goodput, GoodputOf(r)); g != nil {
		u.Goodput = *g
	}
	if r.Training != nil {
		u.Script = truncate(r.Training.Script, 200)
	}
	for _, n := range r.Nodes {
		if n.KubernetesNode == "" {
			continue
		}
		if u.Nodes == nil {
			u.Nodes = map[string]int{}
		}
		u.Nodes[n.KubernetesNode] += len(n.GPUs)
	}
	return u
}

// check returns an error for numbers that no run has, with which a sum would be of no use.
func (u Usage) check() error {
	const most = 1e12
	for _, s := range []Spent{u.Goodput.Seconds, u.Goodput.GPUHours} {
		for _, part := range []float64{s.Waiting, s.Starting, s.Steps, s.Repeated, s.Hang, s.Teardown} {
			if !(part >= 0 && part <= most) {
				return fmt.Errorf("goodput of run %s: %g: want 0 to %g", u.Run, part, most)
			}
		}
	}
	for node, gpus := range u.Nodes {
		if gpus < 0 || gpus > most {
			return fmt.Errorf("node %s of run %s: %d GPUs", node, u.Run, gpus)
		}
	}
	return nil
}

// id tells runs of one name apart.
func (u Usage) id() string { return u.Namespace + "/" + u.Run + "/" + u.RunUID }

// UsageSums is the usage of the runs whose receipts were deleted.
type UsageSums struct {
	Runs []Usage `json:"runs"`
	// LostUntil is the end of the newest run for which there was no room, zero if none was left out.
	LostUntil time.Time `json:"lostUntil,omitzero"`
	// Open are the runs in progress that have met faults of nodes. They have no usage yet.
	Open []Usage `json:"-"`
}

// add adds runs that are not there yet, and drops what has been kept long enough, and the oldest runs for which there is no room.
func (s *UsageSums) add(more []Usage, now time.Time) ([]byte, error) {
	s.Merge(UsageSums{Runs: more})
	old := now.Add(-UsageKept)
	s.Runs = slices.DeleteFunc(s.Runs, func(u Usage) bool { return u.Ended.Before(old) })
	slices.SortStableFunc(s.Runs, func(a, b Usage) int { return b.Ended.Compare(a.Ended) })
	if s.LostUntil.Before(old) {
		s.LostUntil = time.Time{}
	}
	for {
		content, err := json.Marshal(s)
		if err != nil || len(content) <= maxSize || len(s.Runs) == 0 {
			return content, err
		}
		left := len(s.Runs) * 9 / 10
		s.LostUntil = latest(s.LostUntil, s.Runs[left].Ended)
		s.Runs = s.Runs[:left]
	}
}

// keepUsage writes the usage of runs whose receipts are about to be deleted. Doing so again changes nothing.
func keepUsage(ctx context.Context, client kubernetes.Interface, namespace, environment string, doomed []Usage, now time.Time) error {
	doomed = slices.DeleteFunc(doomed, func(u Usage) bool { return u.Ended.Before(now.Add(-UsageKept)) })
	if len(doomed) == 0 {
		return nil
	}
	err := kube.Contend(func() error { return tryKeepUsage(ctx, client, namespace, environment, doomed, now) })
	if err != nil {
		return kube.Problem(fmt.Errorf("keeping the usage of deleted receipts in configmap %s/%s: %w", namespace, environment+usageSuffix, err))
	}
	return nil
}

func tryKeepUsage(ctx context.Context, client kubernetes.Interface, namespace, environment string, doomed []Usage, now time.Time) error {
	configs, name := client.CoreV1().ConfigMaps(namespace), environment+usageSuffix
	var sums UsageSums
	found, err := configs.Get(ctx, name, metav1.GetOptions{})
	exists := err == nil
	switch {
	case exists && found.Labels[UsageLabel] != "true":
		return fail.Becausef(fail.InvalidInput, "it exists without label %s=true: want another name of the environment", UsageLabel)
	case exists:
		sums, _ = usageIn(found) // what is not valid is of no use
	case !apierrors.IsNotFound(err):
		return err
	}
	content, err := sums.add(doomed, now)
	if err != nil {
		return err
	}
	data := map[string]string{usageKey: string(content)}
	if !exists {
		labels := map[string]string{
			"app.kubernetes.io/managed-by": "ml-dev-env", "app.kubernetes.io/name": "ml-dev-env", UsageLabel: "true", environmentLabel: environment,
		}
		wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels}, Data: data}
		_, err = configs.Create(ctx, wanted, metav1.CreateOptions{FieldManager: kube.FieldManager})
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": found.ResourceVersion}, "data": data})
	if err != nil {
		return err
	}
	_, err = configs.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager})
	return err
}

// usageIn reads a ConfigMap, which anyone who may write ConfigMaps may have written.
func usageIn(config *corev1.ConfigMap) (sums UsageSums, err error) {
	if err := json.Unmarshal([]byte(config.Data[usageKey]), &sums); err != nil {
		return UsageSums{}, fail.Becausef(fail.InvalidInput, "reading %s of configmap %s/%s: not valid: %w", usageKey, config.Namespace,
			config.Name, err)
	}
	for i := range sums.Runs {
		if err := sums.Runs[i].check(); err != nil {
			return UsageSums{}, fail.Becausef(fail.InvalidInput, "reading %s of configmap %s/%s: %w", usageKey, config.Namespace, config.Name, err)
		}
		sums.Runs[i].Namespace = config.Namespace
	}
	return sums, nil
}

// Usages returns the usage of all runs of a namespace, "" for all, that have ended, the usage that is kept of deleted receipts, and the
// runs in progress that have met faults. It skips what is not valid; its error names that.
func Usages(ctx context.Context, client kubernetes.Interface, namespace string) (UsageSums, error) {
	// A receipt that is deleted in between is in the second list.
	runs, err := memories(ctx, client, namespace, Label+"=true")
	if err != nil && len(runs) == 0 && fail.ReasonOf(err) != fail.InvalidInput {
		return UsageSums{}, err
	}
	errs := []error{err}
	var all UsageSums
	for _, m := range runs {
		if m.Receipt == nil {
			if faults := m.faults(); len(faults) > 0 {
				all.Open = append(all.Open, Usage{Run: m.Run, RunUID: m.RunUID, Namespace: m.Namespace, Environment: m.Environment, Faults: faults})
			}
			continue
		}
		r := *m.Receipt
		u := r.Usage()
		if err := u.check(); err != nil {
			errs = append(errs, fail.Becausef(fail.InvalidInput, "reading receipt %s/%s: %w", r.Namespace, Name(r.Run), err))
			continue
		}
		all.Runs = append(all.Runs, u)
	}
	kept, err := selected(ctx, client, namespace, UsageLabel+"=true")
	errs = append(errs, err)
	for i := range kept {
		sums, err := usageIn(&kept[i])
		errs = append(errs, err)
		all.Merge(sums)
	}
	return all, errors.Join(errs...)
}

// Merge adds the runs of other sums that are not there yet.
func (s *UsageSums) Merge(other UsageSums) {
	known := map[string]bool{}
	for _, u := range s.Runs {
		known[u.id()] = true
	}
	for _, u := range other.Runs {
		if !known[u.id()] {
			s.Runs = append(s.Runs, u)
		}
	}
	s.Open = append(s.Open, other.Open...)
	s.LostUntil = latest(s.LostUntil, other.LostUntil)
}
