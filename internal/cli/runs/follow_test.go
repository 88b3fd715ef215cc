// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// The fake runs no controller: as soon as the run is cancelled, or a signal comes without a question, the test ends the
// run as Tekton would.
func TestInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name   string
		signal os.Signal
		// answers are keys that the user presses, "" without a terminal.
		answers         string
		cancelled, over bool
	}{
		{"without a terminal", os.Interrupt, "", true, true},
		{"SIGTERM", syscall.SIGTERM, "d", true, true},
		{"SIGTERM to the process and to its group", syscall.SIGTERM, "", true, true},
		{"key: cancel", os.Interrupt, "c", true, true},
		{"key: Ctrl-C", os.Interrupt, "\x03", true, true},
		{"key: detach", os.Interrupt, "d", false, false},
		{"while it was started", nil, "d\n", true, true},
		{stuckTerminal, syscall.SIGTERM, "", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine", UID: "uid-1"}}
			tekton := fake.NewSimpleClientset(of)
			patched := false
			signals := make(chan os.Signal, 1)
			tekton.PrependReactor("patch", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
				patched = true
				if strings.HasSuffix(tc.name, "and to its group") {
					signals <- tc.signal
				}
				done := of.DeepCopy()
				done.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally
				done.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse, Reason: "Cancelled"})
				return true, done, tekton.Tracker().Update(v1.SchemeGroupVersion.WithResource("pipelineruns"), done, "ns")
			})
			// The fake's watch knows no resource versions: it loses what happens between list and watch.
			var watching sync.WaitGroup
			watching.Add(2)
			tekton.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
				defer watching.Done()
				w, err := tekton.Tracker().Watch(action.GetResource(), "ns")
				return true, w, err
			})
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			if tc.signal == nil {
				interrupt()
			} else {
				go func() {
					watching.Wait()
					signals <- tc.signal
				}()
			}
			var out bytes.Buffer
			f := runFollower{clients: &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, run: of,
				display: newDisplay(&out, 1), signals: signals}
			if tc.answers != "" {
				f.answers = strings.NewReader(tc.answers)
			}
			if tc.name == stuckTerminal {
				f.display = stuckDisplay(t)
			}
			outcome, over, err := f.follow(ctx)
			if err != nil || over != tc.over || patched != tc.cancelled {
				t.Fatalf("over %t, cancelled %t, %v; want %t, %t\n%s", over, patched, err, tc.over, tc.cancelled, out.String())
			}
			var exit *command.Exit
			if err := conclude(io.Discard, io.Discard, outcome); over && (!errors.As(err, &exit) || exit.Code != command.Interrupted) {
				t.Errorf("got %v, want exit code %d", err, command.Interrupted)
			}
		})
	}
}

const stuckTerminal = "a terminal that takes nothing"

// stuckDisplay returns the display of a program with more output than what waits for a reader that takes nothing.
func stuckDisplay(t *testing.T) (d *display) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close(); writer.Close() })
	ctx, end := context.WithCancel(t.Context())
	program := &cobra.Command{Use: "mlenv", RunE: func(cmd *cobra.Command, _ []string) error {
		d = newDisplay(outlive(cmd.OutOrStdout(), func() {}), 1)
		for range 3 << 10 {
			d.print("%s", strings.Repeat("x", 1<<10))
		}
		end()
		return nil
	}}
	if code := command.RunCommands(ctx, program, nil, writer, writer); code != command.Done {
		t.Fatalf("exit code %d", code)
	}
	return d
}

// A run without its folder would hold its nodes for nothing, so the follower detaches only after the upload.
func TestFolderIsUploadedBeforeDetaching(t *testing.T) {
	of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine", UID: "uid-1"}}
	lost := errors.New("the network is gone")
	for _, tc := range []struct {
		name   string
		answer string
		err    error
	}{
		{"asked to detach", "d\n", nil},
		{"the upload fails", "", lost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tekton := fake.NewSimpleClientset(of, ended("provision", ""))
			cancelled := false
			tekton.PrependReactor("patch", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
				cancelled = true
				return true, nil, lost
			})
			signals := make(chan os.Signal, 1)
			waiting := &watched{wanted: "not on the nodes yet", seen: make(chan struct{})}
			f := runFollower{clients: &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, run: of,
				display: newDisplay(waiting, 1), signals: signals,
				answers: strings.NewReader(tc.answer), upload: func(context.Context) error {
					if tc.answer != "" {
						signals <- os.Interrupt
						<-waiting.seen
					}
					return tc.err
				}}
			_, over, err := f.follow(t.Context())
			if over || !errors.Is(err, tc.err) || cancelled != (tc.err != nil) {
				t.Errorf("over %t, cancelled %t, %v; want the run to continue, %v\n%s", over, cancelled, err, tc.err, waiting.String())
			}
		})
	}
}

// ended returns a task of run mine that has ended, with the step's reason or with success.
func ended(task string, reason fail.Reason) *v1.TaskRun {
	t := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine-" + task, UID: types.UID(task),
		Labels:          map[string]string{"tekton.dev/pipelineRun": "mine", "tekton.dev/pipelineTask": task},
		OwnerReferences: []metav1.OwnerReference{{UID: "uid-1", Controller: new(true)}}}}
	t.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)}
	status := corev1.ConditionTrue
	if reason != "" {
		status = corev1.ConditionFalse
		t.Status.Results = []v1.TaskRunResult{{Name: "reason", Value: *v1.NewStructuredValues(string(reason))}}
	}
	t.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: status})
	return t
}

// The result of an upload does not matter to a run that has had its folder for hours, or that ends without it.
func TestFolderIsNotNeededAfterSync(t *testing.T) {
	teardown := ended("teardown", "")
	teardown.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionUnknown})
	for name, task := range map[string]*v1.TaskRun{
		"the tree is on the nodes": ended("sync-repo", ""), "sync-repo has failed": ended("sync-repo", fail.RequirementsFailed),
		"another failed before it": teardown,
	} {
		of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine", UID: "uid-1"}}
		tekton := fake.NewSimpleClientset(of, ended("provision", ""), task)
		tekton.PrependReactor("patch", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
			t.Error("the run was cancelled")
			return true, nil, nil
		})
		signals := make(chan os.Signal, 1)
		var out strings.Builder
		f := runFollower{clients: &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, run: of,
			display: newDisplay(&out, 1), signals: signals,
			answers: strings.NewReader("d\n"), upload: func(ctx context.Context) error {
				<-ctx.Done()
				signals <- os.Interrupt
				return ctx.Err()
			}}
		if _, over, err := f.follow(t.Context()); over || err != nil {
			t.Errorf("%s: over %t, %v; want the run to continue\n%s", name, over, err, out.String())
		}
	}
}

// An upload that breaks because the run fails must not hide why it fails.
func TestVerdictBeforeUpload(t *testing.T) {
	broken := errors.New("the nodes are gone")
	for reason, want := range map[fail.Reason]error{fail.NodeLost: nil, fail.Cancelled: broken} {
		of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine", UID: "uid-1"}}
		tekton := fake.NewSimpleClientset(of, ended("provision", ""))
		tekton.PrependReactor("patch", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
			done := of.DeepCopy()
			done.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally
			done.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse, Reason: "Cancelled"})
			return true, done, errors.Join(tekton.Tracker().Add(ended("sync-repo", reason)),
				tekton.Tracker().Update(v1.SchemeGroupVersion.WithResource("pipelineruns"), done, "ns"))
		})
		// The fake's watch knows no resource versions: it loses what happens between list and watch.
		var watching sync.WaitGroup
		watching.Add(2)
		tekton.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
			defer watching.Done()
			w, err := tekton.Tracker().Watch(action.GetResource(), "ns")
			return true, w, err
		})
		var out strings.Builder
		f := runFollower{clients: &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, run: of,
			display: newDisplay(&out, 1),
			upload:  func(context.Context) error { watching.Wait(); return broken }}
		outcome, over, err := f.follow(t.Context())
		if !over || !errors.Is(err, want) || outcome.Reason != reason || outcome.Cancelled != (want != nil) {
			t.Errorf("over %t, %+v, %v; want reason %s and %v", over, outcome, err, reason, want)
		}
	}
}

// watched closes seen when wanted has been written.
type watched struct {
	strings.Builder
	wanted string
	seen   chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	before := strings.Contains(w.String(), w.wanted)
	n, err := w.Builder.Write(p)
	if !before && strings.Contains(w.String(), w.wanted) {
		close(w.seen)
	}
	return n, err
}

func TestWaitingForTekton(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine", UID: "uid-1"}}
		held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ml-dev-env",
			Annotations: map[string]string{lease.HolderKind: "PipelineRun", lease.HolderName: "mine"}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new("uid-1")}}
		var out bytes.Buffer
		f := runFollower{clients: &kube.Clients{Kube: kubefake.NewClientset(held), Tekton: fake.NewSimpleClientset(of), Namespace: "ns"}, run: of,
			display: newDisplay(&out, 1)}
		environment := env.Of(f.clients, "ml-dev-env").Lease(slog.New(slog.DiscardHandler))
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.watchFailure(t.Context())
		}()
		begun := receipt.Start{Run: "mine", Namespace: "ns", RunUID: "uid-1", Environment: "ml-dev-env"}
		lost := receipt.Entry{Task: "train", Status: run.Failed, Final: true, Reason: fail.NodeLost, Ended: time.Now()}
		if err := receipt.Note(t.Context(), f.clients.Kube, begun, lost); err != nil {
			t.Fatal(err)
		}
		// Tekton is slow to retry the task: the pod of the retry pulls its image.
		pods := f.clients.Kube.CoreV1().Pods("ns")
		retry := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "retry",
			Labels: map[string]string{"tekton.dev/pipelineRun": "mine", "tekton.dev/taskRun": "mine-train"}, CreationTimestamp: metav1.Now()},
			Status: corev1.PodStatus{Phase: corev1.PodPending}}
		if _, err := pods.Create(t.Context(), retry, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if out.Len() > 0 {
			t.Errorf("a slow retry: got %q, want nothing", out.String())
		}
		if err := pods.Delete(t.Context(), "retry", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := environment.Delete(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		<-done
		const want = "== task train of pipelinerun mine failed at 2000-01-01T00:00:00Z (NodeLost), and no task has followed; if Tekton starts " +
			"none, the reaper releases the environment in about a minute\n" +
			"== the environment is released; waiting for Tekton to end the run\n"
		if got := out.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestEndSaysWhatWasSaved: who has cancelled a run learns which checkpoint its ranks saved, and how to continue from it.
func TestEndSaysWhatWasSaved(t *testing.T) {
	of := aRun("ns", "mine", time.Hour, true)
	for checkpoint, want := range map[string]bool{"": false, "/workspace/checkpoints/mine/step-40": true} {
		var problems bytes.Buffer
		err := conclude(io.Discard, &problems, launch.Outcome{Run: of, Cancelled: true, Reason: fail.Cancelled, Verdict: receipt.Failed,
			Receipt: &receipt.Receipt{Checkpoint: checkpoint}})
		says := strings.Contains(problems.String(), checkpoint+"\n  continue from it:  mlenv run --resume-from mine -n ns\n")
		if err == nil || says != want {
			t.Errorf("checkpoint %q: %v, printed %q", checkpoint, err, problems.String())
		}
	}
}

// TestWarningIsSaid: the end and the lists of a run that succeeded have its warning.
func TestWarningIsSaid(t *testing.T) {
	const warning = "no rank was connected to another one"
	r := receipt.Receipt{Run: "mine", Verdict: receipt.Succeeded, Warning: warning}
	var out bytes.Buffer
	concludeSuccess(&out, r.Run, r.Run, " after 9 s", &r)
	if !strings.HasPrefix(out.String(), "Run mine succeeded after 9 s, but "+warning+".\n") {
		t.Errorf("printed %q", out.String())
	}
	if got := (runInfo{name: r.Run, at: onCluster{&kube.Clients{}}, receipt: &r}).summary().stateText(); got != "Succeeded (warning)" {
		t.Errorf("lists have %q", got)
	}
}
