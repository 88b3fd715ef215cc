// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

func TestPruneReceipts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		runs   []string
		answer string
		yes    bool
		// left lists the runs that still have a receipt.
		left   string
		reason fail.Reason
	}{
		{"of all deleted runs", nil, "yes\n", false, "there", ""},
		{"of a named run", []string{"there"}, "", true, "deleted-1 deleted-2", ""},
		{"not confirmed", nil, "no\n", false, "deleted-1 deleted-2 there", fail.Cancelled},
		{"one has none", []string{"deleted-1", "going"}, "", true, "deleted-1 deleted-2 there", fail.InvalidInput},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run := func(name string) *v1.PipelineRun {
				return &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid",
					Labels: map[string]string{"tekton.dev/pipeline": "train-multi-node"}}}
			}
			clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(run("there"), run("going")),
				Namespace: "ns"}
			for _, name := range []string{"deleted-1", "deleted-2", "there"} {
				if err := receipt.Write(t.Context(), clients.Kube, receipt.Receipt{Run: name, RunUID: "uid", Namespace: "ns",
					Environment: "env"}); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			cmd := &cobra.Command{}
			cmd.SetContext(t.Context())
			cmd.SetIn(strings.NewReader(tc.answer))
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			err := pruneReceipts(cmd, clients, tc.runs, tc.yes, nil)
			if tc.reason == "" && err != nil || tc.reason != "" && fail.ReasonOf(err) != tc.reason {
				t.Errorf("got %v, want reason %q\n%s", err, tc.reason, out.String())
			}
			all, err := receipt.List(t.Context(), clients.Kube, "ns", "")
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, r := range all {
				left = append(left, r.Run)
			}
			slices.Sort(left)
			if diff := cmp.Diff(tc.left, strings.Join(left, " ")); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPruneFiles: the records and working directories of ended runs are deleted from the claims that still exist, before their receipts.
func TestPruneFiles(t *testing.T) {
	done := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "done", UID: "uid-done",
		Labels: map[string]string{"tekton.dev/pipeline": "train-multi-node"}}}
	done.Status.MarkSucceeded("Succeeded", "")
	going := done.DeepCopy()
	going.Name, going.UID, going.Status = "going", "uid-going", v1.PipelineRunStatus{}
	going.Spec.Params = v1.Params{{Name: "env", Value: *v1.NewStructuredValues("MLENV_RESUME_FROM=first", "A=b")}}
	for _, tc := range []struct {
		name   string
		runs   []string
		fails  error
		want   string
		left   int
		reason fail.Reason
	}{
		{"one deleted run", []string{"gone"}, nil, "shared: .mlenv/runs/uid-gone .mlenv/work/uid-gone .mlenv/work/.uid-gone; ", 3, ""},
		{"two runs of one claim", []string{"gone", "done"}, nil,
			"shared: .mlenv/runs/uid-gone .mlenv/work/uid-gone .mlenv/work/.uid-gone .mlenv/runs/uid-done .mlenv/work/uid-done " +
				".mlenv/work/.uid-done; ", 2, ""},
		{"one is in progress", []string{"gone", "going"}, nil, "", 4, fail.EnvironmentBusy},
		{"one in progress resumes from it", []string{"gone", "first"}, nil, "", 4, fail.EnvironmentBusy},
		{"the files cannot be deleted", []string{"gone"}, fail.Becausef(fail.PermissionDenied, "no"),
			"shared: .mlenv/runs/uid-gone .mlenv/work/uid-gone .mlenv/work/.uid-gone; ", 4, fail.PermissionDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "shared"}}
			clients := &kube.Clients{Kube: kubefake.NewClientset(claim), Tekton: tektonfake.NewSimpleClientset(done, going), Namespace: "ns"}
			for _, name := range []string{"gone", "done", "going", "first"} {
				r := receipt.Receipt{Run: name, RunUID: "uid-" + name, Namespace: "ns", Environment: "env",
					Record: &receipt.Record{Claims: []string{"deleted", "shared"}}}
				if err := receipt.Write(t.Context(), clients.Kube, r); err != nil {
					t.Fatal(err)
				}
			}
			cmd := &cobra.Command{}
			cmd.SetContext(t.Context())
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			got := ""
			err := pruneReceipts(cmd, clients, tc.runs, true, func(_ context.Context, _ *kube.Clients, claim fetch.Claim, paths []string) error {
				got += claim.Name + ": " + strings.Join(paths, " ") + "; "
				return tc.fails
			})
			if got != tc.want || tc.reason == "" && err != nil || tc.reason != "" && fail.ReasonOf(err) != tc.reason {
				t.Errorf("deleted %q, %v; want %q, reason %q", got, err, tc.want, tc.reason)
			}
			if all, err := receipt.List(t.Context(), clients.Kube, "ns", ""); err != nil || len(all) != tc.left {
				t.Errorf("%d receipts are left, %v; want %d", len(all), err, tc.left)
			}
		})
	}
}

// answer answers a question, after what happens meanwhile.
type answer func() string

func (a answer) Read(p []byte) (int, error) { return copy(p, a()), io.EOF }

// TestPruneAsksAgain: a run that begins while the question waits, and resumes from a run that would be deleted, keeps its files.
func TestPruneAsksAgain(t *testing.T) {
	late := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "late", UID: "uid-late",
		Labels: map[string]string{"tekton.dev/pipeline": "train-multi-node"}}}
	late.Spec.Params = v1.Params{{Name: "env", Value: *v1.NewStructuredValues("MLENV_RESUME_FROM=first", "A=b")}}
	clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(), Namespace: "ns"}
	r := receipt.Receipt{Run: "first", RunUID: "uid-first", Namespace: "ns", Environment: "env",
		Record: &receipt.Record{Claims: []string{"shared"}}}
	if err := receipt.Write(t.Context(), clients.Kube, r); err != nil {
		t.Fatal(err)
	}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SetIn(answer(func() string {
		if _, err := clients.Tekton.TektonV1().PipelineRuns("ns").Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
		return "yes\n"
	}))
	err := pruneReceipts(cmd, clients, []string{"first"}, false, func(context.Context, *kube.Clients, fetch.Claim, []string) error {
		t.Error("its files were deleted")
		return nil
	})
	if fail.ReasonOf(err) != fail.EnvironmentBusy {
		t.Errorf("got %v, want that run late needs the files", err)
	}
}
