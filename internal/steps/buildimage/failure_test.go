// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	buildv1 "github.com/openshift/api/build/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestExplain reads testdata/failures.txt: the ends of build logs as buildah, pip, apt and npm write them, and the
// expected explanation of each.
func TestExplain(t *testing.T) {
	content, err := os.ReadFile("testdata/failures.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range strings.Split(string(content), "\n=== ")[1:] {
		header, log, _ := strings.Cut(text, "\n")
		name, rest, _ := strings.Cut(header, " | ")
		status, wants, _ := strings.Cut(rest, " | ")
		reason, message, _ := strings.Cut(status, ": ")
		t.Run(name, func(t *testing.T) {
			e := end{
				plan: plan{namespace: "ns", inputs: inputs{Bases: map[string]string{"nvcr.io/nvidia/pytorch:25.09-py3": ""}},
					deadline: 30 * time.Minute},
				BuildStatus: buildv1.BuildStatus{Phase: buildv1.BuildPhaseFailed, Reason: buildv1.StatusReason(reason), Message: message},
				name:        "b-1", lines: strings.Split(strings.TrimSuffix(log, "\n"), "\n"),
			}
			switch reason {
			case "CancelledBuild":
				e.Phase = buildv1.BuildPhaseCancelled
			case "DeadlineExceeded": // the pod's reason; the Build has no reason of its own for it
				e.overdue, e.Reason = true, buildv1.StatusReasonGenericBuildFailed
			}
			got := explain(e)
			wanted := strings.Split(wants, " ~ ")
			if diff := cmp.Diff(wanted[0], string(got.Reason)); diff != "" {
				t.Errorf("reason (-want +got):\n%s", diff)
			}
			said := e.because(got, "b-1").Error()
			for _, part := range wanted[1:] {
				if !strings.Contains(said, part) {
					t.Errorf("got %q, want %q in it", said, part)
				}
			}
			if fail.NextOf(e.because(got, "b-1")) == "" && got.Reason != fail.Cancelled {
				t.Error("no advice")
			}
		})
	}
}

// TestEvictedForItsDisk: a limit helps only a pod that exceeded its own, a request one whose node was full.
func TestEvictedForItsDisk(t *testing.T) {
	const limits, requests = "image.build_resources.limits.ephemeral_storage", "image.build_resources.requests.ephemeral_storage"
	const low = "The node was low on resource: ephemeral-storage. Threshold quantity: 16023864137, available: 12671572Ki. "
	for message, want := range map[string]string{
		low + "Container docker-build was using 1639680Ki, request is 0, has larger consumption of ephemeral-storage. ": "set " +
			requests,
		"The node was low on resource: ephemeral-storage. Container docker-build was using 7499Mi, which exceeds its request of 0. ": "set " +
			requests,
		low + "Container docker-build was using 52676Mi, request is 10Gi, has larger consumption of ephemeral-storage. ": "raise " + requests,
		"The build pod was evicted: The node had condition: [DiskPressure]. ":                                            "raise " + requests,
		"The node was low on resource: inodes. ":                                                                         "too many files",
		"The build pod was evicted: Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ":       "raise " + limits,
		`Container docker-build exceeded its local ephemeral storage limit "10Gi". `:                                     "raise " + limits,
		`Usage of EmptyDir volume "container-storage-root" exceeds the limit "10Gi". `:                                   "raise " + limits,
	} {
		got := explain(end{plan: plan{namespace: "ns"}, BuildStatus: buildv1.BuildStatus{Phase: buildv1.BuildPhaseFailed,
			Reason: buildv1.StatusReasonBuildPodEvicted, Message: message}, name: "b-1"})
		other := requests
		if strings.Contains(want, requests) || want == "too many files" {
			other = limits
		}
		if got.Reason != fail.DiskFull || !strings.Contains(got.Next, want) || strings.Contains(got.Next, other) {
			t.Errorf("%s: got %s, next %q; want DiskFull, %q", message, got.Reason, got.Next, want)
		}
	}
}

// TestNextStepAfterTheEnd: the server has no log of a build that was cancelled, that is in phase Error, or whose pod is gone. It answers
// such a request with 400, so nobody is sent there.
func TestNextStepAfterTheEnd(t *testing.T) {
	for _, test := range []struct {
		phase  buildv1.BuildPhase
		reason buildv1.StatusReason
		lines  []string
		log    bool
	}{
		{buildv1.BuildPhaseCancelled, buildv1.StatusReasonCancelledBuild, []string{"STEP 1/2: FROM a"}, false},
		{buildv1.BuildPhaseError, buildv1.StatusReasonBuildPodExists, nil, false},
		{buildv1.BuildPhaseError, buildv1.StatusReasonNoBuildContainerStatus, []string{"STEP 1/2: FROM a"}, false},
		{buildv1.BuildPhaseError, buildv1.StatusReasonUnresolvableEnvironmentVariable, nil, false},
		{buildv1.BuildPhaseFailed, buildv1.StatusReasonInvalidOutputReference, nil, false},
		{buildv1.BuildPhaseFailed, buildv1.StatusReasonGenericBuildFailed, []string{"something odd"}, true},
		{buildv1.BuildPhaseFailed, buildv1.StatusReasonDockerBuildFailed, []string{"STEP 1/2: RUN x",
			`error: building at STEP "RUN x": exit status 3`}, true},
	} {
		e := end{plan: plan{namespace: "ns"}, BuildStatus: buildv1.BuildStatus{Phase: test.phase, Reason: test.reason}, name: "b-1",
			lines: test.lines}
		next := fail.NextOf(e.because(explain(e), "b-1"))
		if strings.Contains(next, "oc logs build/b-1 -n ns") != test.log || !test.log && !strings.Contains(next, "oc describe build b-1 -n ns") {
			t.Errorf("%s, %s: next %q; want a log: %t", test.phase, test.reason, next, test.log)
		}
	}
}

// TestLoginForABase: the command works if the Secret exists, which oc create alone does not.
func TestLoginForABase(t *testing.T) {
	const base = "registry.example.com:5000/team/base:1"
	const internal = "image-registry.openshift-image-registry.svc:5000/shared/base:1"
	for _, test := range []struct {
		name, base, secret string
		want               []string
		not                string
	}{
		{"no Secret", base, "", []string{"oc create secret docker-registry base-image --docker-server=registry.example.com:5000 ",
			"--dry-run=client -o yaml | oc apply -f -", "; then image.base_pull_secret: base-image"}, "which exists"},
		{"a Secret", base, "ngc", []string{"into Secret ngc, which exists", "docker-registry ngc --docker-server=registry.example.com:5000 ",
			"| oc apply -f -", "replaces its other logins"}, "base_pull_secret"},
		{"Docker Hub", "team/base", "", []string{"--docker-server=https://index.docker.io/v1/ "}, "which exists"},
		{"another namespace", internal, "ngc", []string{"oc policy add-role-to-group system:image-puller system:serviceaccounts:ns -n shared",
			`image.base_pull_secret: "-" in the cluster file`}, "docker-registry"},
	} {
		e := end{plan: plan{namespace: "ns", inputs: inputs{Bases: map[string]string{test.base: ""}}, pullSecret: test.secret}, name: "b-1",
			BuildStatus: buildv1.BuildStatus{Phase: buildv1.BuildPhaseFailed, Reason: buildv1.StatusReasonPullBuilderImageFailed},
			lines: []string{"error: build error: failed to pull image: initializing source docker://" + test.base +
				": reading manifest: unauthorized: authentication required"}}
		got := explain(e)
		for _, part := range test.want {
			if got.Reason != fail.ImageUnavailable || !strings.Contains(got.Next, part) || strings.Contains(got.Next, test.not) {
				t.Errorf("%s: %s, next %q; want ImageUnavailable with %q, and without %q", test.name, got.Reason, got.Next, part, test.not)
			}
		}
	}
}
