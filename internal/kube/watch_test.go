// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// round is one list and the watch after it, as the API server answers them.
type round struct {
	list    []string
	listErr error
	// events are names: "+x" adds x, "-x" deletes it. The watch then closes, fails, or stays open.
	events   []string
	watchErr error
	failure  *metav1.Status
	open     bool
}

func pod(name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: about(name)}
	p.UID = types.UID(name)
	return p
}

// rounds makes the fake answer for pods in this order. The list of the last round stays.
func rounds(client *fake.Clientset, answers []round) {
	var current round
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		current, answers = answers[0], answers[1:]
		list := &corev1.PodList{}
		for _, name := range current.list {
			list.Items = append(list.Items, *pod(name))
		}
		return true, list, current.listErr
	})
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		w := watch.NewFakeWithChanSize(len(current.events)+1, false)
		for _, event := range current.events {
			if name, gone := strings.CutPrefix(event, "-"); gone {
				w.Delete(pod(name))
			} else {
				w.Add(pod(event[1:]))
			}
		}
		if current.failure != nil {
			w.Error(current.failure)
		}
		if !current.open && current.failure == nil {
			w.Stop()
		}
		return true, w, current.watchErr
	})
}

// The test relies only on reactors, not on the fake's own list and watch.
func TestWatchUntil(t *testing.T) {
	forbidden := answer(403, metav1.StatusReasonForbidden,
		`pods is forbidden: User "h-kim" cannot watch resource "pods" in API group "" in the namespace "ns"`)
	nobody := answer(403, metav1.StatusReasonForbidden,
		`pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace "ns"`)
	away := answer(503, metav1.StatusReasonServiceUnavailable, "starting")
	expired := &metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired, Message: "too old"}
	for _, tc := range []struct {
		name   string
		rounds []round
		want   []string // the names that done saw
		reason fail.Reason
	}{
		{"there at once", []round{{}}, []string{""}, ""},
		{"by events", []round{{list: []string{"b", "a"}, events: []string{"-a", "+c", "-c", "-b"}, open: true}},
			[]string{"a b", "b", "b c", "b", ""}, ""},
		{"the watch closes", []round{{list: []string{"a", "b"}, events: []string{"-a"}}, {}}, []string{"a b", "b", ""}, ""},
		{"the watch is too old", []round{{list: []string{"a"}, failure: expired}, {}}, []string{"a", ""}, ""},
		{"the API server is away", []round{{listErr: away}, {listErr: away}, {list: []string{"a"}, watchErr: away}, {}}, []string{"a", ""}, ""},
		{"taken for nobody later", []round{{list: []string{"a"}}, {listErr: nobody}, {}}, []string{"a", ""}, ""},
		{"taken for nobody at once", []round{{listErr: nobody}}, nil, fail.PermissionDenied},
		{"listing is refused", []round{{listErr: forbidden}}, nil, fail.PermissionDenied},
		{"watching is refused", []round{{list: []string{"a"}, watchErr: forbidden}}, []string{"a"}, fail.PermissionDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				rounds(client, tc.rounds)
				var got []string
				err := WatchUntil(t.Context(), "pods", client.CoreV1().Pods("ns"), metav1.ListOptions{},
					func(pods []*corev1.Pod) (bool, error) {
						got = append(got, strings.Join(namesOf(pods), " "))
						return len(pods) == 0, nil
					})
				if (err != nil || tc.reason != "") && fail.ReasonOf(err) != tc.reason {
					t.Errorf("got %v, want reason %q", err, tc.reason)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("seen (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestWatchUntilEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		rounds(client, []round{{list: []string{"a"}, open: true}, {list: []string{"a"}, open: true}})
		options, source := metav1.ListOptions{}, client.CoreV1().Pods("ns")

		asked := 0
		ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second)
		defer cancel()
		err := WatchUntil(ctx, "pods", source, options, func([]*corev1.Pod) (bool, error) { asked++; return false, nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the deadline: got %v", err)
		}
		if asked != 4 {
			t.Errorf("asked %d times in 35 s, want 4: at once and every ten seconds", asked)
		}

		mine := errors.New("mine")
		err = WatchUntil(t.Context(), "pods", source, options, func([]*corev1.Pod) (bool, error) { return false, mine })
		if !errors.Is(err, mine) {
			t.Errorf("done's own error: got %v", err)
		}
	})
}

// The test relies on the fake's tracker, which lists and watches deleted objects.
func TestWaitGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pod("ours"), pod("theirs")
		ours.Labels = map[string]string{"env": "x"}
		client := fake.NewClientset(ours, theirs,
			&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "set", Labels: ours.Labels}})
		gone := make(chan error, 1)
		var seen []string
		go func() {
			gone <- WaitGone(t.Context(), client, "ns", "env=x", func(left []*corev1.Pod) {
				seen = append(seen, strings.Join(namesOf(left), " "))
			})
		}()
		synctest.Wait()
		if diff := cmp.Diff([]string{""}, seen); diff != "" {
			t.Errorf("progress while the StatefulSet exists (-want +got):\n%s", diff)
		}
		if err := client.AppsV1().StatefulSets("ns").Delete(t.Context(), "set", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := client.CoreV1().Pods("ns").Delete(t.Context(), "ours", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-gone; err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"", "ours"}, seen); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
	})
}

func TestWaitGoneTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := pod("stuck")
		stuck.Labels = map[string]string{"env": "x"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := WaitGone(ctx, fake.NewClientset(stuck), "ns", "env=x", func([]*corev1.Pod) {})
		if fail.ReasonOf(err) != fail.TeardownIncomplete || !strings.Contains(err.Error(), "pod stuck") {
			t.Errorf("got %v", err)
		}
	})
}

func namesOf(pods []*corev1.Pod) (names []string) {
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

// A laptop that wakes up may have no network for its kubeconfig's program; a login that has expired does not come back.
func TestWatchUntilEndsWithoutCredentials(t *testing.T) {
	for name, tc := range map[string]struct{ lasts, want time.Duration }{
		"for a moment": {time.Minute, 0}, "for good": {time.Hour, ownFaultTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				client := fake.NewClientset(pod("x"))
				client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
					err := &url.Error{Op: "Get", URL: "https://api", Err: errors.New("getting credentials: exec: executable kubelogin failed")}
					return time.Since(began) < tc.lasts, nil, err
				})
				done := func([]*corev1.Pod) (bool, error) { return true, nil }
				err := WatchUntil(t.Context(), "pods", client.CoreV1().Pods("ns"), metav1.ListOptions{}, done)
				if took := time.Since(began); (err == nil) != (tc.want == 0) || took < tc.want || took > 2*max(tc.want, tc.lasts) {
					t.Errorf("it ended after %s with %v", took, err)
				}
			})
		})
	}
}
