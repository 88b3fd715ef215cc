// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"context"
	"fmt"
	"slices"
	"strings"

	buildv1 "github.com/openshift/api/build/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// wantedPrefix begins the annotations of a Build by which callers say that they wait for it: the key ends in the caller, the value
// is the caller's name for users, or "" once it has left. The caller who started a build wants it until it has left.
const wantedPrefix = "wanted.ml-dev-env/"

// others returns the other callers who wait for the build, by their names for users. A build that another program has started is always
// wanted.
func (b *builder) others(build *buildv1.Build) (names []string) {
	starter := callerOf(build)
	_, known := build.Annotations[wantedPrefix+starter]
	if starter != b.caller && !known {
		names = append(names, "the caller who started it")
	}
	for key, name := range build.Annotations {
		if caller, ok := strings.CutPrefix(key, wantedPrefix); ok && name != "" && caller != b.caller {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// markWaiting writes that this step waits for a build that another caller has started, so that it is not cancelled when that one leaves.
// It returns false if it is cancelled already.
func (b *builder) markWaiting(ctx context.Context, name string) (bool, error) {
	wanted := true
	err := b.change(ctx, name, func(build *buildv1.Build) bool {
		wanted = !build.Status.Cancelled
		b.annotate(build, b.holder)
		return wanted && !buildEnded(build)
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, kube.Problem(fmt.Errorf("waiting for build %s/%s: %w", b.namespace, name, err))
	}
	return wanted, nil
}

// stopWaiting writes that this step does not wait for the build any more, and cancels it in the same write if nobody else does, or if
// whatever is true. Two callers who leave at once conflict, so one of them sees that the other has left.
func (b *builder) stopWaiting(ctx context.Context, name string, whatever bool) (others []string, err error) {
	err = b.change(ctx, name, func(build *buildv1.Build) bool {
		others = b.others(build)
		b.annotate(build, "")
		build.Status.Cancelled = build.Status.Cancelled || whatever || len(others) == 0
		return !buildEnded(build)
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, kube.Problem(fmt.Errorf("leaving build %s/%s: %w", b.namespace, name, err))
	}
	if whatever {
		others = nil
	}
	return others, nil
}

func (b *builder) annotate(build *buildv1.Build, value string) {
	if build.Annotations == nil {
		build.Annotations = map[string]string{}
	}
	build.Annotations[wantedPrefix+b.caller] = value
}

// change reads a build and writes it with the change, unless edit returns false, again until nobody else writes in between.
func (b *builder) change(ctx context.Context, name string, edit func(*buildv1.Build) bool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		build, err := b.builds.Builds(b.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || !edit(build) {
			return err
		}
		_, err = b.builds.Builds(b.namespace).Update(ctx, build, metav1.UpdateOptions{FieldManager: kube.FieldManager})
		return err
	})
}
