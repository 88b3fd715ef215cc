// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/hosts"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// faulty has receipts of two runs that met faults on node-1, and a quarantine of node-3.
func faulty(t *testing.T, p *place) {
	t.Helper()
	now := time.Now().UTC()
	for i := range 2 {
		at := now.Add(-time.Duration(i+1) * 25 * time.Hour)
		r := receipt.Receipt{Run: fmt.Sprint("run-", i), RunUID: fmt.Sprint(i), Namespace: "ns", Environment: "other", Verdict: receipt.Failed,
			Started: at, Ended: at, Faults: []receipt.Fault{{KubernetesNode: "node-1", Kind: receipt.GPUFault, At: at, Message: "GPU 3 is lost"}}}
		if err := receipt.Write(t.Context(), p.kube, r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hosts.Quarantine(t.Context(), p.kube, "ns", "node-3", hosts.Who("kim", "the fan is broken", now)); err != nil {
		t.Fatal(err)
	}
}

func TestChooseHosts(t *testing.T) {
	const avoids = "Kubernetes node node-1 is used only if no other one is free: 2 faults in 7 days (gpu on "
	quarantine := "Kubernetes node node-3 is not used: it is quarantined by kim on "
	for _, tc := range []struct {
		name                 string
		change               func(*provisioner)
		live                 *appsv1.StatefulSet
		forbidden, away      bool
		quarantined, avoided []string
		says, silent         string
		err                  string
	}{
		{name: "a new environment", quarantined: []string{"node-3"}, avoided: []string{"node-1"}, says: avoids},
		{name: "all nodes", change: func(p *provisioner) { p.options.UseAllNodes = true }, quarantined: []string{"node-3"}, says: quarantine,
			silent: "node-1"},
		{name: "an excluded node", change: func(p *provisioner) { p.request.ExcludeNodes = []string{"node-1"} }, quarantined: []string{"node-3"},
			says: quarantine, silent: "node-1"},
		{name: "an environment that exists", live: &appsv1.StatefulSet{}, silent: "node-"},
		{name: "an environment that is created again", live: &appsv1.StatefulSet{}, change: func(p *provisioner) {
			p.options.OnChange = "recreate"
		},
			quarantined: []string{"node-3"}, says: quarantine, silent: "node-1"},
		{name: "too few nodes", change: func(p *provisioner) { p.request.Nodes = 4 }, err: "mlenv nodes release node-3 -n ns"},
		{name: "without rights", forbidden: true, says: "Which Kubernetes nodes are quarantined is not known"},
		// A quarantine is not forgotten because the API server is away.
		{name: "without an answer", away: true, err: "the server is away"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t)
			faulty(t, p)
			if tc.forbidden {
				p.kube.PrependReactor("*", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("no"))
				})
			}
			if tc.away {
				p.kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, errors.New("the server is away")
				})
			}
			step := p.provisioner(func(s *provisioner) {
				s.request.Nodes = 2
				if tc.change != nil {
					tc.change(s)
				}
			})
			err := step.chooseHosts(t.Context(), tc.live)
			if tc.away {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			if tc.err != "" {
				if fail.ReasonOf(err) != fail.NodesUnavailable || !strings.Contains(fail.NextOf(err), tc.err) {
					t.Errorf("got %v, next %q; want NodesUnavailable, %q", err, fail.NextOf(err), tc.err)
				}
				return
			}
			if err != nil || !slices.Equal(step.request.Quarantined, tc.quarantined) || !slices.Equal(step.request.AvoidNodes, tc.avoided) {
				t.Errorf("not used %q, avoided %q, %v; want %q and %q", step.request.Quarantined, step.request.AvoidNodes, err, tc.quarantined,
					tc.avoided)
			}
			if log := p.messages(); !strings.Contains(log, tc.says) || tc.silent != "" && strings.Contains(log, tc.silent+" ") {
				t.Errorf("log %q, want %q in it, and not %q", log, tc.says, tc.silent)
			}
		})
	}
}

// TestQuarantinedEnvironment creates a whole environment, and the same again after the quarantine has ended: it keeps its nodes.
func TestQuarantinedEnvironment(t *testing.T) {
	p := newPlace(t).withRun(day())
	faulty(t, p)
	if _, err := p.provisioner().run(t.Context()); err != nil {
		t.Fatal(err)
	}
	live := func() *appsv1.StatefulSet {
		t.Helper()
		set, err := p.kube.AppsV1().StatefulSets("ns").Get(t.Context(), "env", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	allowed, excluded := objects.Placement(&live().Spec.Template.Spec)
	_, avoided := objects.Chosen(live())
	if slices.Contains(allowed, "node-3") || !slices.Equal(excluded, []string{"node-3"}) || !slices.Equal(avoided, []string{"node-1"}) {
		t.Errorf("pods may use %q, not %q, and avoid %q", allowed, excluded, avoided)
	}
	for _, node := range []string{"node-1", "node-3"} {
		if _, err := hosts.EndQuarantine(t.Context(), p.kube, "ns", node, hosts.Who("kim", "repaired", time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.provisioner().run(t.Context()); err != nil {
		t.Errorf("the same request again: %v", err)
	}
}

// Pods that find no node name the quarantines that could end.
func TestWithReleases(t *testing.T) {
	step := newPlace(t).provisioner(func(s *provisioner) { s.request.Quarantined = []string{"node-3"} })
	err := step.withReleases(fail.Becausef(fail.NodesUnavailable, "waiting for environment ns/env: 1 may be used"))
	if fail.ReasonOf(err) != fail.NodesUnavailable || !strings.Contains(err.Error(), "quarantined: node-3") ||
		!strings.Contains(fail.NextOf(err), "mlenv nodes release node-3 -n ns") {
		t.Errorf("got %s: %v, next %q", fail.ReasonOf(err), err, fail.NextOf(err))
	}
	other := fail.Becausef(fail.ImageUnavailable, "no image")
	if err := step.withReleases(other); !errors.Is(err, other) || fail.ReasonOf(err) != fail.ImageUnavailable {
		t.Errorf("another error became %v", err)
	}
}

// GPUs that no node can read are no fault of the nodes.
func TestNoteGPUFaults(t *testing.T) {
	fine := agent.Facts{KubernetesNode: "a", GPUsExpected: 0}
	unreadable := agent.Facts{KubernetesNode: "b", GPUProblem: "nvidia-smi is missing"}
	fewer := agent.Facts{KubernetesNode: "c", GPUsExpected: 4}
	for _, tc := range []struct {
		facts []agent.Facts
		want  []string
	}{
		{[]agent.Facts{fine, unreadable, fewer}, []string{"b", "c"}}, {[]agent.Facts{unreadable, unreadable}, nil},
		{[]agent.Facts{fewer}, []string{"c"}},
	} {
		step := newPlace(t).provisioner(func(s *provisioner) { s.faults = &faults{} })
		step.noteGPUFaults(tc.facts)
		step.noteGPUFaults(tc.facts) // a fault shows for a while
		var part receipt.Part
		step.faults.addTo(&part)
		var got []string
		for _, f := range part.Faults {
			got = append(got, f.KubernetesNode)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("faults of %q, want %q", got, tc.want)
		}
	}
}
