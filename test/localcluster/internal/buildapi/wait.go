// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"errors"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	buildclient "github.com/openshift/client-go/build/clientset/versioned/typed/build/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

var (
	errBuildDeleted = errors.New("build was deleted")
	errNotStarted   = errors.New("timed out waiting for the condition") // OpenShift's words
)

// waitStarted watches until the build is neither New nor Pending. After the
// timeout it returns errNotStarted with the build as it was last seen.
func waitStarted(ctx context.Context, client buildclient.BuildV1Interface, namespace, name string, timeout time.Duration) (
	*buildv1.Build, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last *buildv1.Build
	for {
		build, err := client.Builds(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil && last != nil:
			return last, errNotStarted
		case err != nil:
			return last, err
		case started(build):
			return build, nil
		}
		last = build
		watcher, err := client.Builds(namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(), ResourceVersion: build.ResourceVersion,
		})
		if err != nil {
			if ctx.Err() != nil {
				return last, errNotStarted
			}
			return last, err
		}
		build, err = untilStarted(ctx, watcher)
		if build != nil || err != nil {
			return build, err
		}
		if ctx.Err() != nil {
			return last, errNotStarted
		}
	}
}

func started(build *buildv1.Build) bool {
	return build.Status.Phase != buildv1.BuildPhaseNew && build.Status.Phase != buildv1.BuildPhasePending
}

// untilStarted returns nil if the watch or the context ends before the build has started.
func untilStarted(ctx context.Context, watcher watch.Interface) (*buildv1.Build, error) {
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case event, open := <-watcher.ResultChan():
			build, ok := event.Object.(*buildv1.Build)
			switch {
			case !open, !ok:
				return nil, nil
			case event.Type == watch.Deleted:
				return nil, errBuildDeleted
			case started(build):
				return build, nil
			}
		}
	}
}
