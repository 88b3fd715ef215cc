// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

const (
	// Window is the time in which Limit faults make new runs avoid a node.
	Window = 7 * 24 * time.Hour
	// Limit is that number of faults.
	Limit = 2
	// Kept is how long mlenv nodes shows a fault, and how long the record keeps a release.
	Kept = 30 * 24 * time.Hour
)

// Fault is a fault of a Kubernetes node with the run that met it.
type Fault struct {
	receipt.Fault
	Namespace string `json:"namespace,omitempty"`
	Run       string `json:"run"`
}

// String has the form "gpu on 2026-11-25 in run train-x1: GPU 3 (GPU-6a7b): Xid 79".
func (f Fault) String() string {
	text := fmt.Sprintf("%s on %s in run %s", f.Kind, f.At.UTC().Format(time.DateOnly), f.Run)
	if f.Message != "" {
		text += ": " + humanize.OneLine(f.Message, 120)
	}
	return text
}

// History returns the faults since a time by Kubernetes node, the newest first. It skips what no run can have met.
func History(runs []receipt.Memory, since, now time.Time) map[string][]Fault {
	all := map[string][]Fault{}
	kinds := receipt.FaultKinds()
	for _, m := range runs {
		for _, f := range m.NodeFaults() {
			// Clocks differ by less than a day.
			if CheckNode(f.KubernetesNode) != nil || !slices.Contains(kinds, f.Kind) || f.At.Before(since) || f.At.After(now.Add(24*time.Hour)) {
				continue
			}
			all[f.KubernetesNode] = append(all[f.KubernetesNode], Fault{Fault: f, Namespace: m.Namespace, Run: m.Run})
		}
	}
	for _, faults := range all {
		slices.SortStableFunc(faults, func(a, b Fault) int { return b.At.Compare(a.At) })
	}
	return all
}

// Counted returns the faults of a node that count now: those of the last Window, after its last release. What one run met on the node
// within an hour counts once.
func Counted(faults []Fault, record Record, now time.Time) (counted []Fault) {
	for _, f := range faults {
		again := func(other Fault) bool {
			return other.Run == f.Run && other.Namespace == f.Namespace && other.At.Sub(f.At).Abs() < receipt.SameFault
		}
		old := f.At.Before(now.Add(-Window)) || record.Released != nil && !f.At.After(record.Released.At)
		if !old && !slices.ContainsFunc(counted, again) {
			counted = append(counted, f)
		}
	}
	return counted
}

// Avoided is a Kubernetes node that new runs use only if no other one is free, with the faults for which they do so.
type Avoided struct {
	Node   string
	Faults []Fault
}

// Why describes the faults in one line.
func (a Avoided) Why() string {
	const most = 3
	texts := humanize.Each(a.Faults[:min(most, len(a.Faults))], Fault.String)
	if more := len(a.Faults) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%s in 7 days (%s)", humanize.Count(len(a.Faults), "fault"), strings.Join(texts, "; "))
}
