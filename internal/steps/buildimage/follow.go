package buildimage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// cancelTime is what cancelling a build may take when we are told to end.
const cancelTime = 15 * time.Second

// logTime is what the rest of a log may take to arrive after the build's end.
const logTime = 20 * time.Second

// cancelledByOther is the end of a joined build that its owner cancelled.
type cancelledByOther struct{ name string }

func (e *cancelledByOther) Error() string { return "build " + e.name + " was cancelled" }

// follow shows the build's log and waits for its end. A build that we started is
// cancelled when ctx ends; one of somebody else's goes on.
func (b *builder) follow(ctx context.Context, build *buildv1.Build, started bool) error {
	logs := &logFollower{client: b.builds.RESTClient(), namespace: b.namespace, build: build.Name, out: b.out}
	following, stop := context.WithCancel(ctx)
	defer stop()
	read := make(chan struct{})
	go func() { logs.follow(following); close(read) }()

	last, err := b.wait(ctx, build)
	if ctx.Err() != nil {
		return b.interrupted(ctx, build.Name, started)
	}
	if err != nil {
		stop()
		<-read
		if started && last != nil && !ended(last) {
			err = errors.Join(err, b.cancelNow(ctx, build.Name))
		}
		return err
	}
	logs.ended.Store(true)
	select {
	case <-read:
	case <-time.After(logTime):
		b.log.Warn(fmt.Sprintf("The end of the log of build %s could not be read.", build.Name))
		stop()
		<-read
	case <-ctx.Done():
	}
	switch {
	case last.Status.Phase == buildv1.BuildPhaseComplete:
		return nil
	case last.Status.Phase == buildv1.BuildPhaseCancelled && !started:
		return &cancelledByOther{build.Name}
	}
	return b.failure(last, logs.lastLines())
}

// interrupted is the end of a run that was told to end.
func (b *builder) interrupted(ctx context.Context, name string, started bool) error {
	if !started {
		return fail.Becausef(fail.Cancelled, "following build %s: interrupted; whoever started it goes on building", name)
	}
	if err := b.cancelNow(ctx, name); err != nil {
		return fail.Advise(fail.Becausef(fail.Cancelled, "building: interrupted, and build %s could not be cancelled: %w", name, err),
			"oc cancel-build %s -n %s", name, b.namespace)
	}
	return fail.Becausef(fail.Cancelled, "building: interrupted; build %s is cancelled", name)
}

// cancelNow cancels a build after ctx has ended too, and waits until it is.
func (b *builder) cancelNow(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer cancel()
	b.log.Info(fmt.Sprintf("Cancelling build %s.", name))
	if err := b.cancel(ctx, name); err != nil {
		return err
	}
	return b.until(ctx, name, func(build *buildv1.Build) (bool, error) { return ended(build), nil })
}

func (b *builder) cancel(ctx context.Context, name string) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		build, err := b.builds.Builds(b.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || ended(build) {
			return err
		}
		build.Status.Cancelled = true
		_, err = b.builds.Builds(b.namespace).Update(ctx, build, metav1.UpdateOptions{FieldManager: kube.FieldManager})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return kube.Problem(fmt.Errorf("cancelling build %s/%s: %w", b.namespace, name, err))
	}
	return nil
}

// until watches one build.
func (b *builder) until(ctx context.Context, name string, done func(*buildv1.Build) (bool, error)) error {
	return kube.Until(ctx, "build "+name, b.builds.Builds(b.namespace), metav1.ListOptions{FieldSelector: "metadata.name=" + name},
		func(found []*buildv1.Build) (bool, error) {
			if len(found) == 0 {
				return false, fail.Becausef(fail.BuildPodLost, "following build %s/%s: somebody has deleted it", b.namespace, name)
			}
			return done(found[0])
		})
}

// wait watches the build until its end, and says what it waits for meanwhile.
// It gives up where the build's pod does not run in time, or never can.
func (b *builder) wait(ctx context.Context, build *buildv1.Build) (last *buildv1.Build, err error) {
	shown := map[string]bool{}
	say := func(text string) {
		// The kubelet changes between the cause of a failed pull and that it waits.
		if !shown[text] {
			shown[text] = true
			b.log.Info(text)
		}
	}
	begun, running := b.now(), false
	err = b.until(ctx, build.Name, func(now *buildv1.Build) (bool, error) {
		last = now
		switch {
		case ended(now):
			return true, nil
		case now.Status.Phase == buildv1.BuildPhaseRunning:
			if running {
				return false, nil
			}
			running = true
			node := ""
			if pod := b.pod(ctx, now); pod != nil && pod.Spec.NodeName != "" {
				node = " on node " + pod.Spec.NodeName
			}
			b.log.Info(fmt.Sprintf("Build %s runs%s.", now.Name, node))
			return false, nil
		case now.Status.Reason == buildv1.StatusReasonMissingPushSecret:
			return false, b.waitsForPushSecret(now)
		}
		why, blocked := b.pending(ctx, now)
		say(why)
		if waited := b.now().Sub(begun); waited > b.podTimeout {
			if blocked == nil {
				blocked = fail.Becausef(fail.PodsNotReady, "waiting for build %s: it does not run: %s", now.Name, strings.TrimSuffix(why, "."))
			}
			return false, fail.Advise(fmt.Errorf("%w (waited %s)", blocked, waited.Round(time.Second)), "%s", nextOr(blocked, fmt.Sprintf("oc describe build %s -n %s", now.Name, b.namespace)))
		}
		return false, nil
	})
	return last, err
}

func nextOr(err error, otherwise string) string {
	if next := fail.NextOf(err); next != "" {
		return next
	}
	return otherwise
}

// pod is the build's, nil where there is none yet or it may not be read.
func (b *builder) pod(ctx context.Context, build *buildv1.Build) *corev1.Pod {
	name := build.Annotations[buildv1.BuildPodNameAnnotation]
	if name == "" {
		name = build.Name + "-build"
	}
	pod, err := b.kube.CoreV1().Pods(b.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return pod
}

// pending is why a build does not run yet: for people, and as an error where it
// is known what is in the way.
func (b *builder) pending(ctx context.Context, build *buildv1.Build) (why string, blocked error) {
	pod := b.pod(ctx, build)
	if pod == nil {
		if other := b.inFront(ctx, build); other != "" {
			return fmt.Sprintf("Build %s waits for build %s of the same flavour to end.", build.Name, other),
				fail.Becausef(fail.PodsNotReady, "waiting for build %s: build %s of the same flavour goes first", build.Name, other)
		}
		return fmt.Sprintf("Build %s waits for its pod.", build.Name), nil
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("No node takes the build's pod: %s", condition.Message), fail.Advise(
				fail.Becausef(fail.NodesUnavailable, "waiting for pod %s of build %s: no node takes it: %s", pod.Name, build.Name, condition.Message),
				"ask for less in image.build_resources of the cluster file, or have room made: oc describe pod %s -n %s", pod.Name, b.namespace)
		}
	}
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "PodInitializing" && waiting.Reason != "ContainerCreating" {
			return fmt.Sprintf("Container %s of the build's pod waits: %s: %s", status.Name, waiting.Reason, waiting.Message),
				fail.Becausef(cmp.Or(kube.ReasonFor(waiting.Reason), fail.ContainerFailed), "waiting for pod %s of build %s: container %s: %s: %s", pod.Name, build.Name, status.Name, waiting.Reason, waiting.Message)
		}
	}
	return fmt.Sprintf("Pod %s of the build starts.", pod.Name), nil
}

// inFront is the build that runs before ours, as the run policy Serial wants it.
func (b *builder) inFront(ctx context.Context, build *buildv1.Build) string {
	found, err := b.builds.Builds(b.namespace).List(ctx, buildsOf(configName(b.plan.flavour)))
	if err != nil {
		return ""
	}
	for i := range found.Items {
		other := &found.Items[i]
		if other.UID != build.UID && !ended(other) && other.CreationTimestamp.Before(&build.CreationTimestamp) {
			return other.Name
		}
	}
	return ""
}

func (b *builder) waitsForPushSecret(build *buildv1.Build) error {
	return fail.Advise(fail.Becausef(fail.PushRefused, "starting build %s: its push secret is missing: %s", build.Name, build.Status.Message),
		"oc get secret %s -n %s; oc create secret docker-registry %[1]s --docker-server=REGISTRY --docker-username=USER --docker-password=PASSWORD -n %[2]s", b.pushSecret, b.namespace)
}
