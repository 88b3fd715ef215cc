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
				plan:        plan{namespace: "ns", inputs: inputs{Bases: map[string]string{"nvcr.io/nvidia/pytorch:25.09-py3": ""}}, deadline: 30 * time.Minute},
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
		low + "Container docker-build was using 1639680Ki, request is 0, has larger consumption of ephemeral-storage. ":              "set " + requests,
		"The node was low on resource: ephemeral-storage. Container docker-build was using 7499Mi, which exceeds its request of 0. ": "set " + requests,
		low + "Container docker-build was using 52676Mi, request is 10Gi, has larger consumption of ephemeral-storage. ":             "raise " + requests,
		"The build pod was evicted: The node had condition: [DiskPressure]. ":                                                        "raise " + requests,
		"The node was low on resource: inodes. ": "too many files",
		"The build pod was evicted: Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ": "raise " + limits,
		`Container docker-build exceeded its local ephemeral storage limit "10Gi". `:                               "raise " + limits,
		`Usage of EmptyDir volume "container-storage-root" exceeds the limit "10Gi". `:                             "raise " + limits,
	} {
		got := explain(end{plan: plan{namespace: "ns"}, BuildStatus: buildv1.BuildStatus{Phase: buildv1.BuildPhaseFailed, Reason: buildv1.StatusReasonBuildPodEvicted, Message: message}, name: "b-1"})
		other := requests
		if strings.Contains(want, requests) || want == "too many files" {
			other = limits
		}
		if got.Reason != fail.DiskFull || !strings.Contains(got.Next, want) || strings.Contains(got.Next, other) {
			t.Errorf("%s: got %s, next %q; want DiskFull, %q", message, got.Reason, got.Next, want)
		}
	}
}
