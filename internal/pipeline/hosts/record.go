// SPDX-License-Identifier: Apache-2.0

// Package hosts decides which Kubernetes nodes new runs of a namespace may use: by its record of quarantined nodes, and by the faults that
// its runs have met.
package hosts

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	// RecordName is the ConfigMap with the record of a namespace: a key for each Kubernetes node.
	RecordName = "mlenv-nodes"
	// RecordLabel marks it.
	RecordLabel = "ml-dev-env/nodes"
	// MostWhy is the longest reason, in letters.
	MostWhy = 500
	// mostNodes bounds the nodes in the record: with the longest names and reasons they fit a ConfigMap.
	mostNodes = 200
	// mostName bounds the name of a user, in bytes.
	mostName = 200
)

// Mark is who did something, when and why.
type Mark struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
	// Why may be empty for a release.
	Why string `json:"why,omitempty"`
}

// String has the form "by kim on 2026-11-26 10:00 UTC: GPU 3 has fallen off the bus".
func (m Mark) String() string {
	text := fmt.Sprintf("by %s on %s", cmp.Or(m.By, "an unknown user"), m.At.UTC().Format("2006-01-02 15:04 UTC"))
	if m.Why != "" {
		text += ": " + humanize.OneLine(m.Why, MostWhy)
	}
	return text
}

// Record is what users have decided about a Kubernetes node.
type Record struct {
	Node string `json:"-"`
	// Quarantined is the last quarantine, nil for none. It has ended if Released is set.
	Quarantined *Mark `json:"quarantined,omitempty"`
	// Released is the last release: earlier faults of the node no longer count. Nil for none.
	Released *Mark `json:"released,omitempty"`
}

// Active reports whether the node is quarantined now.
func (r Record) Active() bool { return r.Quarantined != nil && r.Released == nil }

// Release returns the command that ends the quarantine of a node.
func Release(node, namespace string) string {
	return fmt.Sprintf("mlenv nodes release %s -n %s", node, namespace)
}

// Records returns the record of a namespace by Kubernetes node. It skips entries that are not valid; its error, InvalidInput, names them.
func Records(ctx context.Context, client kubernetes.Interface, namespace string) (map[string]Record, error) {
	found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, RecordName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, kube.Problem(fmt.Errorf("getting the quarantined nodes, configmap %s/%s: %w", namespace, RecordName, err))
	}
	return recordsIn(found)
}

// recordsIn reads a ConfigMap, which anyone who may write ConfigMaps may have written.
func recordsIn(config *corev1.ConfigMap) (map[string]Record, error) {
	if config.Labels[RecordLabel] != "true" {
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "reading configmap %s/%s: it has no label %s=true, so mlenv did not create it",
			config.Namespace, config.Name, RecordLabel), "oc get configmap %s -n %s -o yaml; delete or rename it", config.Name, config.Namespace)
	}
	all := map[string]Record{}
	var invalid []string
	for _, node := range slices.Sorted(maps.Keys(config.Data)) {
		var r Record
		err := json.Unmarshal([]byte(config.Data[node]), &r)
		if err != nil || r.Quarantined == nil && r.Released == nil || CheckNode(node) != nil || len(all) == mostNodes {
			invalid = append(invalid, node)
			continue
		}
		r.Node = node
		all[node] = r
	}
	if len(invalid) > 0 {
		return all, fail.Advise(fail.Becausef(fail.InvalidInput, "reading configmap %s/%s: not valid: %s", config.Namespace, config.Name,
			humanize.First(invalid, 4)), "oc edit configmap %s -n %s", config.Name, config.Namespace)
	}
	return all, nil
}

// CheckNode returns the mistake in the name of a Kubernetes node.
func CheckNode(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fail.Becausef(fail.InvalidInput, "node %q: want the name of a Kubernetes node: %s", name, problems[0])
	}
	return nil
}

// CheckWhy returns the mistake in a reason.
func CheckWhy(why string) error {
	if n := utf8.RuneCountInString(why); n > MostWhy {
		return fail.Becausef(fail.InvalidInput, "--why: %d letters, want at most %d", n, MostWhy)
	}
	return nil
}

// Quarantine keeps new runs of the namespace away from a node. It returns the record of the node before. If the node is quarantined for the
// same reason already, that record stays.
func Quarantine(ctx context.Context, client kubernetes.Interface, namespace, node string, mark Mark) (before Record, err error) {
	return change(ctx, client, namespace, node, mark, func(r Record) (Record, bool) {
		return Record{Quarantined: &mark}, !r.Active() || r.Quarantined.Why != mark.Why
	})
}

// EndQuarantine lets new runs use a node again, and no longer counts its earlier faults. It returns the record of the node before.
func EndQuarantine(ctx context.Context, client kubernetes.Interface, namespace, node string, mark Mark) (before Record, err error) {
	return change(ctx, client, namespace, node, mark, func(r Record) (Record, bool) {
		return Record{Quarantined: r.Quarantined, Released: &mark}, true
	})
}

// change writes the entry of one node, so that two users who change two nodes at once lose nothing.
func change(ctx context.Context, client kubernetes.Interface, namespace, node string, mark Mark,
	to func(Record) (next Record, changed bool)) (before Record, err error) {
	if err := errors.Join(CheckNode(node), CheckWhy(mark.Why)); err != nil {
		return Record{}, err
	}
	err = kube.Contend(func() (err error) {
		before, err = tryChange(ctx, client, namespace, node, mark.At, to)
		return err
	})
	if err != nil {
		return before, kube.Problem(fmt.Errorf("writing node %s to configmap %s/%s: %w", node, namespace, RecordName, err))
	}
	return before, nil
}

func tryChange(ctx context.Context, client kubernetes.Interface, namespace, node string, now time.Time,
	to func(Record) (next Record, changed bool)) (before Record, err error) {
	configs := client.CoreV1().ConfigMaps(namespace)
	found, err := configs.Get(ctx, RecordName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	all := map[string]Record{}
	if !missing {
		if err != nil {
			return before, err
		}
		if all, err = recordsIn(found); all == nil {
			return before, err // it belongs to another program; one entry that is not valid is not the others' problem
		}
	}
	before = all[node]
	next, changed := to(before)
	if !changed {
		return before, nil
	}
	content, err := json.Marshal(next)
	if err != nil {
		return before, err
	}
	if missing {
		labels := map[string]string{"app.kubernetes.io/managed-by": "ml-dev-env", "app.kubernetes.io/name": "ml-dev-env", RecordLabel: "true"}
		wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: RecordName, Namespace: namespace, Labels: labels},
			Data: map[string]string{node: string(content)}}
		_, err = configs.Create(ctx, wanted, metav1.CreateOptions{FieldManager: kube.FieldManager})
		return before, err
	}
	data, metadata := map[string]any{node: string(content)}, map[string]any{"uid": found.UID}
	if _, known := found.Data[node]; !known && len(found.Data) >= mostNodes {
		dropped := obsolete(all, now)
		if len(dropped) == 0 {
			return before, fail.Advise(fail.Becausef(fail.InvalidInput, "it has %d nodes already, want at most %d", len(found.Data), mostNodes),
				"release nodes; an entry can go 30 days after its release: oc edit configmap %s -n %s", RecordName, namespace)
		}
		for _, name := range dropped {
			data[name] = nil
		}
		metadata["resourceVersion"] = found.ResourceVersion // another user may quarantine one of them at this moment
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "data": data})
	if err != nil {
		return before, err
	}
	_, err = configs.Patch(ctx, RecordName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager})
	return before, err
}

// obsolete returns the nodes that were released so long ago that no fault before that counts.
func obsolete(all map[string]Record, now time.Time) (names []string) {
	for name, r := range all {
		if r.Released != nil && now.Sub(r.Released.At) > Kept {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

// Who returns a mark of a user for this moment.
func Who(user, why string, now time.Time) Mark {
	if len(user) > mostName {
		user = strings.ToValidUTF8(user[:mostName], "")
	}
	return Mark{By: user, At: now.UTC().Truncate(time.Second), Why: strings.Join(strings.Fields(why), " ")}
}
