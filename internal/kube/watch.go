// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// tick is how often a watch looks without a change, for progress and for deadlines.
const tick = 10 * time.Second

// Source lists and watches objects of one kind, as every typed client does. L is the kind's list.
type Source[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// WatchUntil watches the objects that options select until done returns true. done gets all of them, sorted by name: at first,
// after every change, and at least every ten seconds. It restarts a broken watch, also while the API server is unavailable;
// done then sees the objects, not each change. A permanent error, such as PermissionDenied, ends it, as does done's, which is
// returned unchanged. After the end of ctx the error wraps its cause. what names the objects in errors.
func WatchUntil[T metav1.Object, L runtime.Object](ctx context.Context, what string, source Source[L], options metav1.ListOptions,
	done func([]T) (bool, error)) error {
	const firstPause, lastPause = time.Second, 15 * time.Second // the first and the longest pause before a broken watch is opened again
	pause, known := firstPause, false
	var unknown time.Time // since when the credentials cannot be renewed
	var failed error
	ask := func(objects map[types.UID]T) (over bool) {
		byName := func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) }
		over, failed = done(slices.SortedFunc(maps.Values(objects), byName))
		return over || failed != nil
	}
	for {
		seen, over, err := follow(ctx, source, options, ask)
		known = known || seen
		switch {
		case over:
			return failed
		case ctx.Err() != nil:
			return fmt.Errorf("watching %s: %w", what, context.Cause(ctx))
		case err != nil && !Transient(err) && (!known || !identityLost(err)):
			return Problem(fmt.Errorf("watching %s: %w", what, err))
		}
		switch {
		case !ownFault(err):
			unknown = time.Time{}
		case unknown.IsZero():
			unknown = time.Now()
		case time.Since(unknown) >= ownFaultTime:
			return Problem(fmt.Errorf("watching %s: %w", what, err))
		}
		if seen {
			pause = firstPause
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
			return fmt.Errorf("watching %s: %w", what, withCause(context.Cause(ctx), err))
		}
	}
}

// ownFaultTime is how long an error of our own may last: a laptop that wakes up has no network for some moments.
const ownFaultTime = 10 * time.Minute

// ownFault reports whether a request was not sent because the kubeconfig's program gave no credentials, or because the server's
// certificate is not trusted.
func ownFault(err error) bool {
	var untrusted *tls.CertificateVerificationError
	return err != nil && (strings.Contains(err.Error(), "getting credentials: ") || errors.As(err, &untrusted))
}

// UntilOne is WatchUntil for the object of one name. done gets nil while it does not exist.
func UntilOne[T metav1.Object, L runtime.Object](ctx context.Context, what string, source Source[L], name string,
	done func(T) (bool, error)) error {
	return WatchUntil(ctx, what, source, metav1.ListOptions{FieldSelector: "metadata.name=" + name}, func(found []T) (bool, error) {
		var one T
		// client-go's fake ignores the field selector.
		if i := slices.IndexFunc(found, func(object T) bool { return object.GetName() == name }); i >= 0 {
			one = found[i]
		}
		return done(one)
	})
}

func withCause(cause, err error) error {
	if err == nil {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// follow lists once and watches until the watch ends or ask returns true. seen reports whether the list succeeded.
func follow[T metav1.Object, L runtime.Object](ctx context.Context, source Source[L], options metav1.ListOptions,
	ask func(map[types.UID]T) bool) (seen, over bool, err error) {
	list, err := source.List(ctx, options)
	if err != nil {
		return false, false, err
	}
	objects := map[types.UID]T{}
	items, err := meta.ExtractList(list)
	if err != nil {
		return false, false, err
	}
	for _, item := range items {
		if object, ok := item.(T); ok {
			objects[object.GetUID()] = object
		}
	}
	listMeta, err := meta.ListAccessor(list)
	if err != nil {
		return false, false, err
	}
	if ask(objects) {
		return true, true, nil
	}

	options.ResourceVersion = listMeta.GetResourceVersion()
	w, err := source.Watch(ctx, options)
	if err != nil {
		return true, false, err
	}
	defer w.Stop()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return true, false, ctx.Err()
		case <-ticker.C:
		case event, open := <-w.ResultChan():
			if !open {
				return true, false, nil
			}
			if event.Type == watch.Error {
				return true, false, apierrors.FromObject(event.Object)
			}
			object, ok := event.Object.(T)
			if !ok || event.Type == watch.Bookmark {
				continue
			}
			if event.Type == watch.Deleted {
				delete(objects, object.GetUID())
			} else {
				objects[object.GetUID()] = object
			}
		}
		if ask(objects) {
			return true, true, nil
		}
	}
}

// WaitGone waits until the namespace has no StatefulSet and then no pod with the labels, in this order, because an existing
// StatefulSet recreates its pods. progress gets the remaining pods after every change and at least every ten seconds; nil
// while the StatefulSet exists. After ctx's deadline the error is TeardownIncomplete and names what is left.
func WaitGone(ctx context.Context, client kubernetes.Interface, namespace, selector string, progress func(left []*corev1.Pod)) error {
	options := metav1.ListOptions{LabelSelector: selector}
	var left []string
	err := WatchUntil(ctx, "statefulsets of "+selector+" in "+namespace, client.AppsV1().StatefulSets(namespace), options,
		func(sets []*appsv1.StatefulSet) (bool, error) {
			left = nil
			for _, set := range sets {
				left = append(left, "statefulset "+set.Name)
			}
			if len(sets) > 0 {
				progress(nil)
			}
			return len(sets) == 0, nil
		})
	if err == nil {
		err = WatchUntil(ctx, "pods of "+selector+" in "+namespace, client.CoreV1().Pods(namespace), options,
			func(pods []*corev1.Pod) (bool, error) {
				left = nil
				for _, pod := range pods {
					text := "pod " + pod.Name
					if pod.Spec.NodeName != "" {
						text += " on " + pod.Spec.NodeName + ", whose GPUs cannot be confirmed free"
					}
					left = append(left, text)
				}
				if len(pods) > 0 {
					progress(pods)
				}
				return len(pods) == 0, nil
			})
	}
	// ctx decides, because a deadline may have its own cause.
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fail.Advise(fail.Because(fail.TeardownIncomplete,
			fmt.Errorf("waiting until nothing of %s is left in %s: not deleted: %s: %w", selector, namespace,
				cmp.Or(strings.Join(left, ", "), "what the API server does not say"), err)),
			"oc get statefulsets,pods -n %s -l %s -o wide", namespace, selector)
	}
	return err
}

// SleepContext waits between two tries; it is false once ctx is done.
func SleepContext(ctx context.Context, duration time.Duration) bool {
	select {
	case <-time.After(duration):
		return true
	case <-ctx.Done():
		return false
	}
}
