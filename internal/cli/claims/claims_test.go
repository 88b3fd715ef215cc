// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

var now = time.Date(2026, 7, 10, 0, 0, 0, 0, time.UTC)

// namespace returns a namespace with claims of two environments, a user's claim that a run used, and two unrelated claims.
func namespace(t *testing.T) *kube.Clients {
	t.Helper()
	client := fake.NewClientset()
	claim := func(name, environment string, owners ...metav1.OwnerReference) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid of " + name),
			OwnerReferences:   owners,
			CreationTimestamp: metav1.NewTime(now.Add(-9 * 24 * time.Hour))}}
		if environment != "" {
			c.Labels = objects.Labels(environment)
		}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")}
		return c
	}
	pod := func(name, claim string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: corev1.PodStatus{Phase: phase},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{
				{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}}}
	}
	for _, object := range []runtime.Object{
		claim("old-workspace", "old"), claim("old-datasets", "old"), claim("live-workspace", "live"), claim("live-datasets", "live"),
		claim("mine", ""), claim("starting-workspace", "starting"), claim("queued-workspace", "queued"),
		claim("ml-dev-workspace", "ml-dev-env"), claim("ml-dev-datasets-ml-dev-env-a-1", "gone"),
		claim("postgres", ""), claim("named", ""), installed(), claim("probe", "old", metav1.OwnerReference{Name: "lease"}),
		pod("live-0", "live-workspace", corev1.PodRunning), pod("ended", "old-workspace", corev1.PodSucceeded),
		pod("pending", "mine", corev1.PodPending),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "live", Labels: objects.Labels("live")}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ml-dev-env-a", Labels: objects.Labels("ml-dev-env-a")}},
	} {
		if err := client.Tracker().Add(object); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range []receipt.Receipt{{Run: "first", Environment: "old"},
		{Run: "second", Environment: "old", Record: &receipt.Record{Claims: []string{"mine"}}}} {
		r.Namespace, r.Started = "ns", now.Add(time.Duration(i-5)*time.Hour)
		r.Ended = r.Started.Add(time.Hour)
		if err := receipt.Write(t.Context(), client, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := receipt.BeginJournal(t.Context(), client, receipt.Start{Run: "train-1", RunUID: "u", Namespace: "ns", Environment: "starting",
		Started: now}); err != nil {
		t.Fatal(err)
	}
	client.ClearActions()
	queued := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-2"}}
	queued.Spec.PipelineRef = &v1.PipelineRef{Name: launch.Pipeline}
	queued.Spec.Params = v1.Params{{Name: "name", Value: *v1.NewStructuredValues("queued")}}
	return &kube.Clients{Kube: client, Tekton: tektonfake.NewSimpleClientset(queued), Namespace: "ns"}
}

// installed returns a cluster file that names a claim.
func installed() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mlenv-cluster-x"}, Data: map[string]string{
		"cluster.yaml": "cluster: {name: x, api: x.example.com, namespace: ns}\nstorage: {mode: rwx, class_rwx: n, datasets_claim: named}\n"}}
}

func TestList(t *testing.T) {
	all, err := readClaims(t.Context(), namespace(t))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := all.print(&out, now); err != nil {
		t.Fatal(err)
	}
	want := `NAME                            ENVIRONMENT  SIZE   AGE   LAST USE
mine                            -            100Gi  9d0h  now, by pending
old-datasets                    old          100Gi  9d0h  3h0m ago, by run second
old-workspace                   old          100Gi  9d0h  3h0m ago, by run second
live-datasets                   live         100Gi  9d0h  unknown
live-workspace                  live         100Gi  9d0h  now, by live-0
ml-dev-datasets-ml-dev-env-a-1  gone         100Gi  9d0h  unknown
ml-dev-workspace                ml-dev-env   100Gi  9d0h  unknown
named                           -            100Gi  9d0h  unknown
queued-workspace                queued       100Gi  9d0h  unknown
starting-workspace              starting     100Gi  9d0h  unknown
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDelete(t *testing.T) {
	for _, tc := range []struct {
		name   string
		names  []string
		answer string
		yes    bool
		// deleted returns the deleted names and the UIDs that the deletion requires.
		deleted string
		reason  fail.Reason
		says    string
	}{
		{"two", []string{"old-workspace", "old-datasets"}, "yes\n", false, "old-workspace uid of old-workspace, old-datasets uid of old-datasets",
			"", "Delete 2 claims and all files on them?"},
		{"without a question", []string{"old-datasets"}, "", true, "old-datasets uid of old-datasets", "", ""},
		{"not confirmed", []string{"old-datasets"}, "y\n", false, "", fail.Cancelled, ""},
		{"nobody answers", []string{"old-datasets"}, "", false, "", fail.Cancelled, ""},
		{"one of two is mounted", []string{"old-datasets", "live-workspace"}, "yes\n", true, "", fail.EnvironmentBusy, "mounted by live-0"},
		{"mounted by a pod that waits", []string{"mine"}, "", true, "", fail.EnvironmentBusy, "mounted by pending"},
		{"its environment exists", []string{"live-datasets"}, "", true, "", fail.EnvironmentBusy, "its environment live exists"},
		{"another environment shares it", []string{"ml-dev-workspace"}, "", true, "", fail.EnvironmentBusy, "ml-dev-env-a exists"},
		{"a node's own claim", []string{"ml-dev-datasets-ml-dev-env-a-1"}, "", true, "", fail.EnvironmentBusy, "ml-dev-env-a exists"},
		{"the cluster file names it, and an environment exists", []string{"named"}, "", true, "", fail.EnvironmentBusy, "its environment"},
		{"a run is before its preflight", []string{"starting-workspace"}, "", true, "", fail.EnvironmentBusy, "run train-1, which has not ended"},
		{"a run has left nothing yet", []string{"queued-workspace"}, "", true, "", fail.EnvironmentBusy, "run train-2, which has not ended"},
		{"another program's", []string{"postgres"}, "", true, "", fail.InvalidInput, "claim ns/postgres"},
		{"of a lease", []string{"probe"}, "", true, "", fail.InvalidInput, "claim ns/probe"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clients := namespace(t)
			var out bytes.Buffer
			cmd := &cobra.Command{}
			cmd.SetContext(t.Context())
			cmd.SetIn(strings.NewReader(tc.answer))
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			err := confirmAndDelete(cmd, clients, tc.names, tc.yes)
			if tc.reason == "" && err != nil || tc.reason != "" && fail.ReasonOf(err) != tc.reason {
				t.Errorf("got %v, want reason %q", err, tc.reason)
			}
			if err != nil {
				out.WriteString(err.Error())
			}
			if !strings.Contains(out.String(), tc.says) {
				t.Errorf("got %q, want %q", out.String(), tc.says)
			}
			var deleted []string
			for _, action := range clients.Kube.(*fake.Clientset).Actions() {
				if action, ok := action.(clienttesting.DeleteActionImpl); ok {
					deleted = append(deleted, action.Name+" "+string(*action.DeleteOptions.Preconditions.UID))
				}
			}
			if diff := cmp.Diff(tc.deleted, strings.Join(deleted, ", ")); diff != "" {
				t.Errorf("deleted (-want +got):\n%s", diff)
			}
		})
	}
}
