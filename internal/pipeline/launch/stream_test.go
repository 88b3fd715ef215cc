// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// broken breaks at the end of its text.
func broken(text string) io.ReadCloser {
	return io.NopCloser(io.MultiReader(strings.NewReader(text), errorReader{}))
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func whole(text string) io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }

// The openings stand for the API server, which repeats the lines of the second from which the caller asks on.
func TestStreamIsTakenUpWhereItBroke(t *testing.T) {
	const (
		one   = "2026-07-01T12:00:00.1Z one\n"
		two   = "2026-07-01T12:00:00.5Z two\n"
		twin  = "2026-07-01T12:00:00.5Z two\n" // the same line at the same time
		three = "2026-07-01T12:00:01.0Z three\n"
	)
	for _, tc := range []struct {
		name string
		// openings are the answers in order. The container ends before the last one.
		openings []func() (io.ReadCloser, error)
		want     []string
		reason   fail.Reason
	}{
		{"whole", openings(whole(one + two)), []string{"one", "two"}, ""},
		{"breaks between lines", openings(broken(one+two), whole(one+two+three)), []string{"one", "two", "three"}, ""},
		{"breaks in a line", openings(broken(one+two[:27]), whole(one+two+three)), []string{"one", "two", "three"}, ""},
		{"breaks between twins", openings(broken(one+two), whole(one+two+twin+three)), []string{"one", "two", "two", "three"}, ""},
		{"breaks after twins", openings(broken(one+two+twin), whole(one+two+twin+three)), []string{"one", "two", "two", "three"}, ""},
		{"breaks twice", openings(broken(one), broken(one+two), whole(one+two+three)), []string{"one", "two", "three"}, ""},
		{"ends without a newline", openings(whole(one + "2026-07-01T12:00:00.5Z two")), []string{"one", "two"}, ""},
		{"does not run yet", []func() (io.ReadCloser, error){refuse(apierrors.NewBadRequest("container is waiting to start")), give(whole(one))},
			[]string{"one"}, ""},
		{"its pod is gone", []func() (io.ReadCloser, error){give(broken(one)), refuse(apierrors.NewNotFound(corev1.Resource("pods"), "p"))},
			[]string{"one"}, ""},
		{"its container runtime restarts", openings(broken(one), whole(goneBody+"containerd://3"), whole(one+two)),
			[]string{"one", "two"}, ""},
		{"may not be read", []func() (io.ReadCloser, error){refuse(apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no")))}, nil,
			fail.PermissionDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				left := tc.openings
				var s *stream
				s = newStream(func(context.Context, time.Time) (io.ReadCloser, error) {
					if len(left) == 0 {
						t.Fatal("it is opened too often")
					}
					next := left[0]
					if left = left[1:]; len(left) == 1 {
						s.end()
					}
					return next()
				})
				if len(left) == 1 {
					s.end()
				}
				var got []string
				err := s.follow(t.Context(), func(_ time.Time, line string) { got = append(got, line) })
				if tc.reason == "" && err != nil || tc.reason != "" && fail.ReasonOf(err) != tc.reason {
					t.Errorf("got %v, want reason %q", err, tc.reason)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func openings(logs ...io.ReadCloser) (all []func() (io.ReadCloser, error)) {
	for _, log := range logs {
		all = append(all, give(log))
	}
	return all
}

func give(log io.ReadCloser) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return log, nil }
}

func refuse(err error) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return nil, err }
}

// A kubelet that refuses a log, or has deleted its container, does not keep the end of its task for ever.
func TestStreamOfAKubeletThatRefuses(t *testing.T) {
	for name, open := range map[string]opener{
		"refuses": refuseAll(apierrors.NewInternalError(errors.New("remote error: tls: internal error"))),
		"has deleted the log": func(context.Context, time.Time) (io.ReadCloser, error) {
			return whole(goneBody + "containerd://3bb6"), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := newStream(open)
				time.AfterFunc(time.Minute, s.end)
				err := s.follow(t.Context(), func(time.Time, string) {})
				if took := time.Since(began) - time.Minute; err == nil || took < refusedTime || took > 2*refusedTime {
					t.Errorf("it ended %s after the container, with %v", took, err)
				}
			})
		})
	}
}

func refuseAll(err error) opener {
	return func(context.Context, time.Time) (io.ReadCloser, error) { return nil, err }
}

// The rest of a long log comes after the run has ended, also to an observer that is slow; one that stays away is reported.
// TestPastIsToldInOrder: who attaches to a run gets the log of a task that has ended before that of the next one, however slow it is.
func TestPastIsToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var got []string
		f := &follower{ctx: ctx, of: followed(nil), tasks: map[string]*task{}, observe: func(e Event) {
			if e.Kind != TaskStarted {
				got = append(got, strings.TrimSpace(e.Task+" "+e.Text))
			}
		}}
		f.open = func(pod, _ string) opener {
			return func(context.Context, time.Time) (io.ReadCloser, error) {
				if pod == "train-pod" {
					time.Sleep(time.Second)
				}
				return whole("2026-01-01T00:00:00Z of " + pod + "\n"), nil
			}
		}
		done := &corev1.ContainerStateTerminated{}
		later := taskRun("teardown", ran("teardown-pod", nil))
		later.Status.StartTime = at(30)
		f.update([]*v1.TaskRun{later, ended(taskRun("train", ran("train-pod", done)), corev1.ConditionTrue, "Succeeded", "")})
		f.update([]*v1.TaskRun{ended(later.DeepCopy(), corev1.ConditionTrue, "Succeeded", "")})
		f.logs.Wait()
		if want := []string{"train of train-pod", "train", "teardown of teardown-pod", "teardown"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestDrain(t *testing.T) {
	for name, tc := range map[string]struct {
		pause, busy time.Duration // between two lines, and of the observer for each
		lines       int
		lost        bool
	}{
		"a long log":      {drainTime / 2, 0, 10, false},
		"a slow observer": {time.Second, 2 * drainTime, 3, false},
		"nothing comes":   {2 * drainTime, 0, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				var got []Kind
				f := &follower{ctx: ctx, tasks: map[string]*task{}, observe: func(e Event) { time.Sleep(tc.busy); got = append(got, e.Kind) }}
				s := newStream(nil)
				f.tasks["train"] = &task{streams: map[string]*stream{"pod/step": s}}
				f.logs.Go(func() {
					defer close(s.done)
					for range tc.lines {
						select {
						case <-time.After(tc.pause):
							f.emit(Event{Kind: Line})
						case <-ctx.Done():
							return
						}
					}
				})
				f.drain(stop)
				if lost := slices.Contains(got, LogLost); lost != tc.lost || !lost && len(got) != tc.lines {
					t.Errorf("got %v, want %d lines, lost: %t", got, tc.lines, tc.lost)
				}
			})
		})
	}
}
