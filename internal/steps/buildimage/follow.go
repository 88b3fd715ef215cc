// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	// podTime is how long a build may take to start. OpenShift cancels a build with a folder after five minutes, and the
	// step waits a little longer for that.
	podTime = 6 * time.Minute
	// cancelTime is how long a cancelled build may take to say so.
	cancelTime = 15 * time.Second
	// logTime is how long the rest of a log may take to arrive after the build's end.
	logTime = 20 * time.Second
	// lateTime is how long the server may take to create the Build of a request whose answer was lost.
	lateTime = 3 * time.Second
	// answerTime is how long the server may take to answer the sender of a cancelled build, and the kubelet to report how the
	// pod of a failed one ended.
	answerTime = 10 * time.Second
)

// errCancelledByOther is the error of a joined build that was cancelled.
var errCancelledByOther = fail.Becausef(fail.Cancelled, "the build, which another caller had started, was cancelled")

// follow prints the build's log and waits for its end. When ctx ends, or another task of the run has failed, follow cancels the
// build unless another caller waits for it.
func (b *builder) follow(ctx context.Context, build *buildv1.Build, started *sending) error {
	logs := &logFollower{client: b.builds.RESTClient(), namespace: b.namespace, build: build.Name, out: b.out}
	following, stop := context.WithCancel(ctx)
	defer stop()
	read := make(chan struct{})
	go func() { logs.follow(following); close(read) }()

	last, blocked, err := b.wait(ctx, build, started, logs)
	if ctx.Err() != nil {
		return b.interrupted(ctx, build.Name, started)
	}
	if err != nil {
		stop()
		<-read
		switch {
		case command.Printed(err):
			b.notNeeded(ctx, build.Name)
		case started != nil && last != nil && !buildEnded(last):
			err = errors.Join(err, b.cancelNow(ctx, build.Name))
		case last != nil && !buildEnded(last):
			_, left := b.stopWaiting(ctx, build.Name, false)
			err = errors.Join(err, left)
		}
		return err
	}
	logs.ended.Store(true)
	select {
	case <-read:
	case <-time.After(logTime):
		b.log.Warn(fmt.Sprintf("The end of the log of build %s did not arrive.", build.Name))
		stop()
		<-read
	case <-ctx.Done():
	}
	return b.endError(ctx, last, blocked, started, logs.lastLines())
}

// endError returns the error of a build that has ended, nil if it completed.
func (b *builder) endError(ctx context.Context, last *buildv1.Build, blocked error, started *sending, lines []string) error {
	switch last.Status.Phase {
	case buildv1.BuildPhaseComplete:
		return nil
	case buildv1.BuildPhaseCancelled:
		switch {
		case started == nil && blocked != nil:
			return fmt.Errorf("%w; %w", blocked, errCancelledByOther)
		case started == nil:
			return errCancelledByOther
		}
		return b.cancelled(ctx, last, blocked, started)
	}
	err := b.failure(ctx, last, lines)
	if started != nil && started.brokeOff() && last.Status.Reason == buildv1.StatusReasonFetchSourceFailed {
		return notReceivedError{err}
	}
	return err
}

// received reports whether a build is known to have the whole folder.
func received(build *buildv1.Build) bool {
	return slices.ContainsFunc(build.Status.Stages, func(stage buildv1.StageInfo) bool { return stage.Name == buildv1.StageFetchInputs })
}

// cancelled explains who cancelled a build of this step. OpenShift does it if the build does not run within five minutes, or
// if the connection breaks that sends the folder; only its answer to the sender shows which. blocked is what the build waited for.
func (b *builder) cancelled(ctx context.Context, build *buildv1.Build, blocked error, started *sending) error {
	var answer error
	select {
	case <-started.ended:
		answer = started.err
	case <-time.After(answerTime):
	case <-ctx.Done():
	}
	switch {
	case answer == nil || apierrors.IsBadRequest(answer) && !timedOut(answer), received(build):
		return b.because(explain(end{plan: b.plan, BuildStatus: build.Status, name: build.Name}), build.Name)
	case timedOut(answer) && blocked != nil:
		return fmt.Errorf("%w; OpenShift cancelled the build, because it did not run in time: %w", blocked, answer)
	case timedOut(answer):
		return fail.Advise(fail.Becausef(fail.PodsNotReady, "waiting for build %s: OpenShift cancelled it, because it did not run in time: %w",
			build.Name, answer),
			"oc describe build %s -n %s", build.Name, b.namespace)
	}
	return notReceivedError{fail.Advise(
		fail.Becausef(fail.NetworkFailed, "sending the folder to build %s: OpenShift cancelled the build, because the connection broke: %w",
			build.Name, answer),
		"start it again; if it happens again after the same time, "+
			"a load balancer before the API server ends idle connections: see its idle timeout")}
}

// timedOut reports whether the server gave up waiting for the build to run. It uses different status codes for that.
func timedOut(answer error) bool {
	return apierrors.IsTimeout(answer) || strings.Contains(answer.Error(), "timed out waiting")
}

// interrupted leaves the build. A folder that the build has not received whole does not arrive any more.
func (b *builder) interrupted(ctx context.Context, name string, started *sending) error {
	others, err := b.leaveNow(ctx, name, started != nil && !started.arrived())
	if err != nil {
		return fail.Advise(fail.Becausef(fail.Cancelled, "building: interrupted, and build %s could not be cancelled: %w", name, err),
			"oc cancel-build %s -n %s", name, b.namespace)
	}
	if len(others) > 0 {
		return fail.Becausef(fail.Cancelled, "following build %s: interrupted; the build continues, because %s waits for it", name,
			strings.Join(others, " and "))
	}
	return fail.Becausef(fail.Cancelled, "building: interrupted; build %s is cancelled", name)
}

// notNeeded leaves the build of a run that another task has failed.
func (b *builder) notNeeded(ctx context.Context, name string) {
	const failed = "Another task of this run has failed. Build %s "
	others, err := b.leaveNow(ctx, name, false)
	switch {
	case err != nil:
		b.log.Warn(fmt.Sprintf(failed+"could not be cancelled: %v", name, err))
	case len(others) > 0:
		b.log.Info(fmt.Sprintf(failed+"continues, because %s waits for it.", name, strings.Join(others, " and ")))
	default:
		b.log.Info(fmt.Sprintf(failed+"is cancelled, because no other run or user waits for it.", name))
	}
}

// cancelNow cancels a build, even after ctx has ended, and waits until it is cancelled.
func (b *builder) cancelNow(ctx context.Context, name string) error {
	_, err := b.leaveNow(ctx, name, true)
	return err
}

// leaveNow is leave, even after ctx has ended. If it cancels the build it waits until it is cancelled.
func (b *builder) leaveNow(ctx context.Context, name string, whatever bool) (others []string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer cancel()
	if others, err = b.stopWaiting(ctx, name, whatever); err != nil || len(others) > 0 {
		return others, err
	}
	b.log.Info(fmt.Sprintf("Cancelling build %s.", name))
	return nil, b.watchBuild(ctx, name, func(build *buildv1.Build) (bool, error) { return buildEnded(build), nil })
}

func (b *builder) cancel(ctx context.Context, name string) error {
	_, err := b.stopWaiting(ctx, name, true)
	return err
}

func (b *builder) watchBuild(ctx context.Context, name string, done func(*buildv1.Build) (bool, error)) error {
	return kube.UntilOne(ctx, "build "+name, b.builds.Builds(b.namespace), name, func(build *buildv1.Build) (bool, error) {
		if build == nil {
			return false, fail.Becausef(fail.BuildPodLost, "following build %s/%s: it was deleted", b.namespace, name)
		}
		return done(build)
	})
}

// wait watches the build until its end, and logs what it waits for. It fails if the build's pod does not run in time, or
// never can. blocked is what last kept the pod from running, nil if it ran.
func (b *builder) wait(ctx context.Context, build *buildv1.Build, started *sending, logs *logFollower) (
	last *buildv1.Build, blocked, err error) {
	shown := map[string]bool{} // the kubelet alternates between the cause of a failed pull and its back-off
	begun, running := b.now(), false
	var quiet silence
	err = b.watchBuild(ctx, build.Name, func(now *buildv1.Build) (bool, error) {
		last = now
		if buildEnded(now) {
			return true, nil
		}
		// A build that others follow needs its whole folder, which only this step can send.
		if started == nil || started.arrived() || len(b.others(now)) == 0 {
			if err := b.needed(ctx); err != nil {
				return false, err
			}
		}
		switch {
		case now.Status.Phase == buildv1.BuildPhaseRunning:
			copied, line := logs.copiedSoFar()
			if silent := quiet.dueReport(b.now(), copied); silent > 0 {
				b.log.Info(fmt.Sprintf("Build %s is still running; it has printed nothing for %s, last: %s", now.Name, silent.Round(time.Second),
					shortened(line)))
			}
			if running {
				return false, nil
			}
			running, blocked = true, nil
			node := ""
			if pod := b.pod(ctx, now); pod != nil && pod.Spec.NodeName != "" {
				node = " on node " + pod.Spec.NodeName
			}
			b.log.Info(fmt.Sprintf("Build %s runs%s.", now.Name, node))
			return false, nil
		case now.Status.Reason == buildv1.StatusReasonMissingPushSecret:
			return false, b.waitsForPushSecret(now)
		}
		why := b.pending(ctx, now)
		// The pod of a cancelled build is deleted: what kept it from running was seen before.
		if current, err := b.builds.Builds(b.namespace).Get(ctx, now.Name, metav1.GetOptions{}); err == nil && current.Status.Cancelled {
			return false, nil
		}
		blocked = b.because(why, now.Name)
		if !shown[why.Seen] {
			shown[why.Seen] = true
			b.log.Info(fmt.Sprintf("Build %s: %s.", now.Name, strings.TrimSuffix(why.Seen, ".")))
		}
		if waited := b.now().Sub(begun); waited > b.podTimeout {
			return false, fmt.Errorf("%w (waited %s)", blocked, waited.Round(time.Second))
		}
		return false, nil
	})
	return last, blocked, err
}

func podName(build *buildv1.Build) string {
	return cmp.Or(build.Annotations[buildv1.BuildPodNameAnnotation], build.Name+"-build")
}

// pod returns the build's pod, nil if it does not exist yet or may not be read.
func (b *builder) pod(ctx context.Context, build *buildv1.Build) *corev1.Pod {
	pod, err := b.kube.CoreV1().Pods(b.namespace).Get(ctx, podName(build), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return pod
}

// pending explains why a build does not run yet, by its status, its pod and the last event.
func (b *builder) pending(ctx context.Context, build *buildv1.Build) fail.Finding {
	describe := func(kind, name string) string { return fmt.Sprintf("oc describe %s %s -n %s", kind, name, b.namespace) }
	switch reason := build.Status.Reason; reason {
	case "":
	case buildv1.StatusReasonCannotCreateBuildPod, buildv1.StatusReasonCannotCreateBuildPodSpec:
		// The build stays New: the server tries again.
		return end{plan: b.plan, BuildStatus: build.Status, name: build.Name}.notCreated()
	default:
		return newFinding(fail.PodsNotReady, fmt.Sprintf("it waits: %s: %s", reason, build.Status.Message), nil, describe("build", build.Name))
	}
	pod := b.pod(ctx, build)
	if pod == nil {
		event := b.lastEvent(ctx, build.UID)
		if event == "" {
			if other := b.ahead(ctx, build); other != "" {
				return newFinding(fail.PodsNotReady, "it waits for build "+other+" of the same BuildConfig", nil,
					fmt.Sprintf("wait for the end of build %s, or oc cancel-build %[1]s -n %s", other, b.namespace))
			}
		}
		return newFinding(fail.PodsNotReady, "it waits for its pod"+event, nil, describe("build", build.Name))
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return newFinding(fail.NodesUnavailable, "no node fits its pod: "+condition.Message, nil,
				"request less in image.build_resources of the cluster file, or free resources: "+describe("pod", pod.Name))
		}
	}
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "PodInitializing" && waiting.Reason != "ContainerCreating" {
			return newFinding(cmp.Or(kube.ReasonFor(waiting.Reason), fail.ContainerFailed),
				fmt.Sprintf("container %s of its pod waits: %s: %s", status.Name, waiting.Reason, waiting.Message),
				nil, describe("pod", pod.Name))
		}
	}
	seen := "its pod starts" + b.lastEvent(ctx, pod.UID)
	if b.pullSecret != "" && strings.Contains(seen, fmt.Sprintf("secret %q not found", b.pullSecret)) {
		return newFinding(fail.ImageUnavailable, seen, nil, b.makePullSecret(slices.Sorted(maps.Keys(b.inputs.Bases))))
	}
	return newFinding(fail.PodsNotReady, seen, nil, describe("pod", pod.Name))
}

// ahead returns a build of the same BuildConfig that runs or starts, "" for none. A build waits for it if another writer has
// given the BuildConfig another run policy.
func (b *builder) ahead(ctx context.Context, build *buildv1.Build) string {
	found, err := b.builds.Builds(b.namespace).List(ctx, buildsOf(configName(b.flavour)))
	if err != nil {
		return "" // the wait continues without the reason
	}
	for _, other := range found.Items {
		if phase := other.Status.Phase; other.UID != build.UID && (phase == buildv1.BuildPhasePending || phase == buildv1.BuildPhaseRunning) {
			return other.Name
		}
	}
	return ""
}

// lastEvent returns the last event about an object, "" for none or if events may not be read.
func (b *builder) lastEvent(ctx context.Context, uid types.UID) string {
	events, err := b.kube.CoreV1().Events(b.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid)})
	if err != nil {
		return ""
	}
	at := func(e corev1.Event) time.Time {
		return slices.MaxFunc([]time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time}, time.Time.Compare)
	}
	about := slices.DeleteFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.UID != uid })
	if len(about) == 0 {
		return ""
	}
	last := slices.MaxFunc(about, func(a, b corev1.Event) int { return at(a).Compare(at(b)) })
	return fmt.Sprintf(": %s: %s", last.Reason, last.Message)
}

// outcome reads a failed build again after its log has ended, with its pod, nil if that is gone. OpenShift reports a lack of
// memory in two steps: what the builder saw, and then, once the pod has ended, why. A deadline is in the pod's status only.
func (b *builder) outcome(ctx context.Context, build *buildv1.Build) (*buildv1.Build, *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var pod *corev1.Pod
	// Without the pod the Build has to do.
	_ = kube.UntilOne(ctx, "pod of build "+build.Name, b.kube.CoreV1().Pods(b.namespace), podName(build),
		func(live *corev1.Pod) (bool, error) {
			pod = cmp.Or(live, pod)
			return live == nil || kube.HasEnded(live), nil
		})
	if latest, err := b.builds.Builds(b.namespace).Get(ctx, build.Name, metav1.GetOptions{}); err == nil {
		build = latest
	}
	return build, pod
}

func (b *builder) waitsForPushSecret(build *buildv1.Build) error {
	secret := b.pushSecret
	if given := build.Spec.Output.PushSecret; secret == "" && given != nil {
		secret = given.Name
	}
	return fail.Advise(fail.Becausef(fail.PushRefused, "starting build %s: its push secret %s is missing: %s", build.Name, secret,
		build.Status.Message),
		"oc get secret %s -n %s; oc create secret docker-registry %[1]s --docker-server=REGISTRY --docker-username=USER"+
			" --docker-password=PASSWORD -n %[2]s", secret, b.namespace)
}
