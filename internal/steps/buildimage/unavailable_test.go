// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	buildclient "github.com/openshift/client-go/build/clientset/versioned"
	buildfake "github.com/openshift/client-go/build/clientset/versioned/fake"
	imageclient "github.com/openshift/client-go/image/clientset/versioned"
	imagefake "github.com/openshift/client-go/image/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestNoRegistry: without an internal registry the API server fails every build at once.
func TestNoRegistry(t *testing.T) {
	s := prepared(t)
	s.images = imagefake.NewClientset(&imagev1.ImageStream{ObjectMeta: metav1.ObjectMeta{Name: StreamName, Namespace: "ns"}}).ImageV1()
	err := s.apply(t.Context())
	if fail.ReasonOf(err) != fail.BuildUnavailable || !strings.Contains(fail.NextOf(err), "managementState") {
		t.Errorf("got %v (%s), want BuildUnavailable with what enables the registry", err, fail.NextOf(err))
	}
}

// TestNoBuildAPI uses the real clients, which add the object's name to errors, against a server that lacks an API. The
// server refuses a caller without rights to the API before it checks whether the API exists.
func TestNoBuildAPI(t *testing.T) {
	for _, missing := range []string{"image.openshift.io/v1", "build.openshift.io/v1"} {
		for _, code := range []int{http.StatusNotFound, http.StatusForbidden} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if code == http.StatusForbidden && strings.Contains(r.URL.Path, "/namespaces/") {
					answer(t, w, code, apierrors.NewForbidden(buildv1.Resource("x"), "y", nil).Status())
					return
				}
				http.NotFound(w, r)
			}))
			defer server.Close()
			images, err := imageclient.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			builds, err := buildclient.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			s := prepared(t)
			cluster := withBuilds()
			cluster.Resources = slices.DeleteFunc(cluster.Resources, func(list *metav1.APIResourceList) bool { return list.GroupVersion == missing })
			s.kube = cluster
			if missing == buildv1.GroupVersion.String() {
				s.builds = builds.BuildV1()
				err = s.apply(t.Context())
			} else {
				s.images = images.ImageV1()
				_, err = s.prepare(t.Context())
			}
			if fail.ReasonOf(err) != fail.BuildUnavailable || !strings.Contains(err.Error(), "no API "+missing) {
				t.Errorf("without %s, %d: got %s: %v, want BuildUnavailable", missing, code, fail.ReasonOf(err), err)
			}
		}
	}
}

// TestBlockedBuild: a build without a pod stays New until the server cancels it.
func TestBlockedBuild(t *testing.T) {
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "b-1", Namespace: "ns"}}
	build.Status.Phase = buildv1.BuildPhaseNew
	build.Status.Reason = buildv1.StatusReasonCannotCreateBuildPod
	build.Status.Message = `pods "b-1-build" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1`
	s := prepared(t, build)
	s.podTimeout = -1
	_, blocked, err := s.wait(t.Context(), build, nil, &logFollower{})
	if fail.ReasonOf(err) != fail.QuotaExceeded || !strings.Contains(fail.NextOf(err), "quota") ||
		!strings.Contains(s.log.String(), "exceeded quota") {
		t.Errorf("got %v (%s), want QuotaExceeded, with advice and a line of log", err, fail.NextOf(err))
	}
	build.Status.Phase, build.Status.Reason = buildv1.BuildPhaseCancelled, buildv1.StatusReasonCancelledBuild
	// These are OpenShift's own answers to the sender.
	badRequest := func(text string) error { return apierrors.NewBadRequest(text) }
	for _, test := range []struct {
		name    string
		blocked error
		answer  error
		want    fail.Reason
		parts   string
	}{
		{"quota", blocked, badRequest("unable to wait for build b-1 to run: timed out waiting for the condition"), fail.QuotaExceeded,
			"OpenShift cancelled the build, because it did not run in time"},
		{"unknown", nil, badRequest("unable to wait for build b-1 to run: timed out waiting for the condition"), fail.PodsNotReady,
			"OpenShift cancelled it, because it did not run in time"},
		{"timeout", nil, apierrors.NewTimeoutError("timed out waiting for build b-1 to start after 5m0s", 0), fail.PodsNotReady, "after 5m0s"},
		{"by a user", blocked, badRequest("build b-1 was cancelled: no logs are available."), fail.Cancelled, "it was cancelled"},
		{"while it ran", nil, nil, fail.Cancelled, "it was cancelled"},
		{"connection", blocked, io.ErrUnexpectedEOF, fail.NetworkFailed, "because the connection broke: unexpected EOF"},
	} {
		answered := &sending{ended: make(chan struct{}), err: test.answer}
		close(answered.ended)
		if err := s.endError(t.Context(), build, test.blocked, answered, nil); fail.ReasonOf(err) != test.want ||
			!strings.Contains(err.Error(), test.parts) {
			t.Errorf("%s: %s: %v, want %s with %q", test.name, fail.ReasonOf(err), err, test.want, test.parts)
		}
	}
	for want, blocked := range map[fail.Reason]error{fail.QuotaExceeded: blocked, fail.Cancelled: nil} {
		if err := s.endError(t.Context(), build, blocked, nil, nil); !errors.Is(err, errCancelledByOther) || fail.ReasonOf(err) != want {
			t.Errorf("a joined build: %s: %v, want errCancelledByOther with %s", fail.ReasonOf(err), err, want)
		}
	}
}

// TestCancelledWhileLooked: when the server cancels a build, it deletes the build's pod before the build's phase shows the
// end.
func TestCancelledWhileLooked(t *testing.T) {
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "b-1", Namespace: "ns"}}
	build.Status.Phase = buildv1.BuildPhasePending
	s := prepared(t, build)
	pods := kubefake.NewClientset()
	s.kube = pods
	change := func(cancelled bool, phase buildv1.BuildPhase) {
		next := build.DeepCopy()
		next.Status.Cancelled, next.Status.Phase = cancelled, phase
		if _, err := s.builds.Builds("ns").Update(t.Context(), next, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
	looks := 0
	pods.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if looks++; looks == 1 {
			change(false, buildv1.BuildPhasePending) // so that the step looks again
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b-1-build", Namespace: "ns"}}
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: "0/3 nodes are available"}}
			return true, pod, nil
		}
		change(true, buildv1.BuildPhasePending)
		change(true, buildv1.BuildPhaseCancelled)
		return true, nil, apierrors.NewNotFound(corev1.Resource("pods"), "b-1-build")
	})
	last, blocked, err := s.wait(t.Context(), build, nil, &logFollower{})
	if err != nil || looks < 2 || last.Status.Phase != buildv1.BuildPhaseCancelled || fail.ReasonOf(blocked) != fail.NodesUnavailable {
		t.Errorf("after %d looks: %s, blocked by %v, %v; want Cancelled, blocked by NodesUnavailable", looks, last.Status.Phase, blocked, err)
	}
}

// TestMissingPushSecret: the build stays Pending until the Secret exists.
func TestMissingPushSecret(t *testing.T) {
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "b-1", Namespace: "ns"}}
	build.Status.Phase, build.Status.Reason = buildv1.BuildPhasePending, buildv1.StatusReasonMissingPushSecret
	build.Spec.Output.PushSecret = &corev1.LocalObjectReference{Name: "absent"}
	_, _, err := prepared(t, build).wait(t.Context(), build, nil, &logFollower{})
	if fail.ReasonOf(err) != fail.PushRefused || !strings.Contains(fail.NextOf(err), "docker-registry absent") {
		t.Errorf("got %s: %v (%s), want PushRefused with what creates the Secret", fail.ReasonOf(err), err, fail.NextOf(err))
	}
}

// TestPendingBuild: the build's status, its pod and their events show what the build waits for.
func TestPendingBuild(t *testing.T) {
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "b-1", Namespace: "ns", UID: "build"}}
	build.Status.Phase = buildv1.BuildPhasePending
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b-1-build", Namespace: "ns", UID: "pod"}}
	event := func(name string, about types.UID, reason, message string, at int64) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}, InvolvedObject: corev1.ObjectReference{UID: about},
			Reason: reason, Message: message, LastTimestamp: metav1.Unix(at, 0)}
	}
	noAccount := build.DeepCopy()
	noAccount.Status.Reason, noAccount.Status.Message = buildv1.StatusReasonCannotRetrieveServiceAccount, "Unable to look up the service "+
		"account secrets for this build."
	unscheduled := pod.DeepCopy()
	unscheduled.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Message: "0/3 nodes are available"}}
	missing := event("b", "pod", "FailedMount", `MountVolume.SetUp failed for volume "ngc-pull" : secret "ngc" not found`, 2)
	first := build.DeepCopy()
	first.Name, first.UID, first.Status.Phase, first.Labels = "b-0", "first", buildv1.BuildPhaseRunning, map[string]string{
		buildv1.BuildConfigLabel: "ml-dev-env-cpu"}
	for _, test := range []struct {
		name    string
		build   *buildv1.Build
		objects []runtime.Object
		want    fail.Reason
		seen    string
	}{
		{"no pod", build, []runtime.Object{event("a", "build", "FailedCreate", "Error creating build pod: no", 1)}, fail.PodsNotReady,
			"it waits for its pod: FailedCreate: Error creating build pod: no"},
		{"behind another", build, []runtime.Object{first}, fail.PodsNotReady, "it waits for build b-0 of the same BuildConfig"},
		{"status", noAccount, nil, fail.PodsNotReady, "it waits: CannotRetrieveServiceAccount: Unable to look up"},
		{"unscheduled", build, []runtime.Object{unscheduled}, fail.NodesUnavailable, "no node fits its pod: 0/3 nodes"},
		{"pulls", build, []runtime.Object{pod, event("a", "pod", "Pulling", `Pulling image "builder"`, 1),
			event("c", "other", "Killing", "x", 9)}, fail.PodsNotReady, `its pod starts: Pulling: Pulling image "builder"`},
		{"no secret", build, []runtime.Object{pod, event("a", "pod", "Scheduled", "ok", 1), missing}, fail.ImageUnavailable,
			`secret "ngc" not found`},
	} {
		s := prepared(t, append(test.objects, test.build)...)
		s.pullSecret = "ngc"
		if got := s.pending(t.Context(), test.build); got.Reason != test.want || !strings.Contains(got.Seen, test.seen) || got.Next == "" {
			t.Errorf("%s: %+v, want %s with %q, and what to do", test.name, got, test.want, test.seen)
		}
	}
}

// TestOutOfMemoryInTwoSteps: OpenShift's builder reports DockerBuildFailed before the kubelet reports OOMKilled.
func TestOutOfMemoryInTwoSteps(t *testing.T) {
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "b-1", Namespace: "ns"}}
	build.Status.Phase, build.Status.Reason = buildv1.BuildPhaseFailed, buildv1.StatusReasonDockerBuildFailed
	log := []string{"STEP 2/2: RUN make -j64", `error: build error: error building at STEP "RUN make -j64": exit status 2`}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b-1-build", Namespace: "ns", UID: "pod"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	s := prepared(t, build, pod)
	seen := make(chan struct{})
	var once sync.Once
	s.kube.(*kubefake.Clientset).PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		once.Do(func() { close(seen) })
		return false, nil, nil
	})
	go func() {
		<-seen // the step waits for the end of the pod
		killed := pod.DeepCopy()
		killed.Status.Phase = corev1.PodFailed
		killed.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "OOMKilled"}}}}
		if _, err := s.kube.CoreV1().Pods("ns").Update(t.Context(), killed, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}()
	if err := s.endError(t.Context(), build, nil, nil, log); fail.ReasonOf(err) != fail.OutOfMemory {
		t.Errorf("got %s: %v, want OutOfMemory", fail.ReasonOf(err), err)
	}
	overdue := pod.DeepCopy()
	overdue.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded"}
	generic, seconds := build.DeepCopy(), int64(90)
	generic.Status.Reason, generic.Spec.CompletionDeadlineSeconds = buildv1.StatusReasonGenericBuildFailed, &seconds
	if err := prepared(t, generic, overdue).endError(t.Context(), generic, nil, nil, log); fail.ReasonOf(err) != fail.BuildTimeout ||
		!strings.Contains(err.Error(), "1m30s") {
		t.Errorf("got %s: %v, want BuildTimeout with the Build's own deadline", fail.ReasonOf(err), err)
	}
}

func TestMissingServiceAccount(t *testing.T) {
	err := prepared(t).notStarted(
		apierrors.NewInternalError(
			errors.New(`error getting push/pull secrets for service account ns/builder: serviceaccounts "builder" not found`)))
	if fail.ReasonOf(err) != fail.BuildUnavailable || !strings.Contains(fail.NextOf(err), "oc create serviceaccount builder -n ns") {
		t.Errorf("got %s: %v (%s), want BuildUnavailable with what creates the account", fail.ReasonOf(err), err, fail.NextOf(err))
	}
}

func TestArgumentsAreKeysAndValues(t *testing.T) {
	for _, text := range []string{"A", "=b", "--flag=x", "A B=c", "A$=c", "1A=b", "A=\x00"} {
		if _, err := parseArgs("--env", []string{"GOOD=1", text}); err == nil || !strings.Contains(err.Error(), "want KEY=VALUE") {
			t.Errorf("%q: %v, want an error", text, err)
		}
	}
	args, err := parseArgs("--env", []string{"B=1=2", "a_9=", "B=3"})
	if err != nil || len(args) != 2 || args[0] != (Arg{"B", "3"}) || args[1] != (Arg{"a_9", ""}) {
		t.Errorf("got %v, %v", args, err)
	}
}

// FuzzExplain: any log of a build leads to a reason and a bounded text.
func FuzzExplain(f *testing.F) {
	f.Add("[2/3] STEP 16/19: RUN make\nmake: *** Error\nerror: build error: error building at STEP \"RUN make\": exit status 7",
		"DockerBuildFailed", "")
	f.Add("STEP 2/2: RUN pip install x\nERROR: ResolutionImpossible\n\n", "GenericBuildFailed", "DeadlineExceeded")
	f.Add("", "CannotCreateBuildPod", "exceeded quota")
	f.Fuzz(func(t *testing.T, log, reason, message string) {
		if len(message) > 1000 {
			return
		}
		found := explain(end{
			plan: plan{namespace: "ns"}, BuildStatus: buildv1.BuildStatus{Phase: buildv1.BuildPhaseFailed, Reason: buildv1.StatusReason(reason),
				Message: message},
			name: "b-1", lines: strings.Split(log, "\n"),
		})
		err := plan{namespace: "ns"}.because(found, "b-1")
		if found.Reason == "" || found.Seen == "" || fail.NextOf(err) == "" {
			t.Errorf("%+v: want a reason, its cause and advice", found)
		}
		const sizeOfAnError = 64 << 10
		if len(err.Error()) > sizeOfAnError {
			t.Errorf("the text has %d bytes", len(err.Error()))
		}
	})
}

// FuzzReadDefinition: any Dockerfile has bases and arguments, or leads to the reason DockerfileInvalid.
func FuzzReadDefinition(f *testing.F) {
	f.Add([]byte("ARG A=b\nFROM ${A:-c} AS d\nRUN <<EOF\ntrue\nEOF\nCOPY --from=d /a /b\n"))
	f.Add([]byte("# escape=`\nFROM a`\n"))
	f.Add([]byte("FROM $\nONBUILD RUN true"))
	f.Fuzz(func(t *testing.T, dockerfile []byte) {
		d, err := ReadDefinition("f", fstest.MapFS{"Dockerfile": {Data: dockerfile}})
		if err == nil {
			d.ArgNames()
			_, err = d.BaseImages([]Arg{{"A", "x"}})
		}
		if err != nil && fail.ReasonOf(err) != fail.DockerfileInvalid {
			t.Errorf("reason %s: %v", fail.ReasonOf(err), err)
		}
	})
}

// TestSilentBuild: from time to time a line reports that a silent build is still running.
func TestSilentBuild(t *testing.T) {
	var quiet silence
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		after  time.Duration
		copied int64
		want   time.Duration
	}{
		{0, 5, 0},
		{quietTime - 1, 5, 0},
		{quietTime, 5, quietTime},
		{quietTime + time.Second, 5, 0},
		{2 * quietTime, 5, 2 * quietTime},
		{3 * quietTime, 6, 0},
		{4 * quietTime, 6, quietTime},
	} {
		if got := quiet.dueReport(at.Add(test.after), test.copied); got != test.want {
			t.Errorf("after %s with %d bytes: %s, want %s", test.after, test.copied, got, test.want)
		}
	}
	logs := &logFollower{out: io.Discard}
	if _, err := logs.Write([]byte("a\nPulling image x ...\n")); err != nil {
		t.Fatal(err)
	}
	if copied, last := logs.copiedSoFar(); copied != 22 || last != "Pulling image x ..." {
		t.Errorf("seen %d bytes, last %q", copied, last)
	}
}

// TestBuildsByDockerAreForbidden: a cluster may forbid users builds that run as root.
func TestBuildsByDockerAreForbidden(t *testing.T) {
	s := prepared(t)
	builds := buildfake.NewClientset()
	builds.PrependReactor("patch", "buildconfigs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(buildv1.Resource("buildconfigs"), "ml-dev-env-cpu",
			errors.New("build strategy Docker is not allowed"))
	})
	s.builds = builds.BuildV1()
	if err := s.apply(t.Context()); fail.ReasonOf(err) != fail.PermissionDenied ||
		!strings.Contains(fail.NextOf(err), "add-role-to-user system:build-strategy-docker") {
		t.Errorf("got %s: %v (%s), want PermissionDenied with the role", fail.ReasonOf(err), err, fail.NextOf(err))
	}
}
