package runs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// The fake runs no controller: as soon as the run is cancelled, or a signal asks nothing, the test ends it as Tekton would.
func TestInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name   string
		signal os.Signal
		// answers of somebody at the terminal, "" for none there.
		answers         string
		cancelled, over bool
	}{
		{"without a terminal", os.Interrupt, "", true, true},
		{"SIGTERM", syscall.SIGTERM, "d\n", true, true},
		{"answer: cancel", os.Interrupt, "c\n", true, true},
		{"answer: detach", os.Interrupt, "d\n", false, false},
		{"while it was started", nil, "d\n", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine", UID: "uid-1"}}
			tekton := fake.NewSimpleClientset(of)
			patched := false
			tekton.PrependReactor("patch", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
				patched = true
				done := of.DeepCopy()
				done.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally
				done.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse, Reason: "Cancelled"})
				return true, done, tekton.Tracker().Update(v1.SchemeGroupVersion.WithResource("pipelineruns"), done, "ns")
			})
			// The fake's watch knows no resource versions: what happens between list and watch it never tells.
			var watching sync.WaitGroup
			watching.Add(2)
			tekton.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
				defer watching.Done()
				w, err := tekton.Tracker().Watch(action.GetResource(), "ns")
				return true, w, err
			})
			signals := make(chan os.Signal)
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
			f := follower{clients: &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, run: of, display: newDisplay(&out, 1), signals: signals}
			if tc.answers != "" {
				f.answers = strings.NewReader(tc.answers)
			}
			outcome, over, err := f.follow(ctx)
			if err != nil || over != tc.over || patched != tc.cancelled {
				t.Fatalf("over %t, cancelled %t, %v; want %t, %t\n%s", over, patched, err, tc.over, tc.cancelled, out.String())
			}
			var exit *step.Exit
			if err := conclude(io.Discard, io.Discard, outcome); over && (!errors.As(err, &exit) || exit.Code != step.Interrupted) {
				t.Errorf("got %v, want exit code %d", err, step.Interrupted)
			}
		})
	}
}

// A run that waits for a folder which nobody sends any more holds its nodes for nothing.
func TestNobodyLeavesBeforeTheFolderIsSent(t *testing.T) {
	s := sender{folder: &folder{}}
	if s.leave() {
		t.Error("left before the folder was sent")
	}
	if !s.arrived() || !s.leave() {
		t.Error("not let go when the folder was sent")
	}
	if none := (sender{}); !none.leave() {
		t.Error("held without a folder")
	}
}
