// SPDX-License-Identifier: Apache-2.0

package buildstatus

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	buildv1 "github.com/openshift/api/build/v1"
)

func TestAReportFitsATerminationMessage(t *testing.T) {
	lines := strings.Repeat("a line of a log\n", 1000) + "the last line"
	want := Report{Reason: buildv1.StatusReasonDockerBuildFailed, ImageDigest: "sha256:1"}
	sent := want
	sent.LogTail = lines
	const sizeOfATerminationMessage = 4096
	content := sent.Encode(sizeOfATerminationMessage)
	if len(content) > sizeOfATerminationMessage {
		t.Fatalf("%d bytes, want at most %d", len(content), sizeOfATerminationMessage)
	}
	got := Decode(string(content))
	if !strings.HasSuffix(got.LogTail, "a line of a log\nthe last line") {
		t.Errorf("the log's end is %q", got.LogTail[max(0, len(got.LogTail)-60):])
	}
	got.LogTail = ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestALongLineIsCut(t *testing.T) {
	r := Report{LogTail: strings.Repeat("x", 10000)}
	const sizeOfAReport = 100
	if content := r.Encode(sizeOfAReport); len(content) > sizeOfAReport {
		t.Errorf("%d bytes, want at most %d", len(content), sizeOfAReport)
	}
}

func TestWhatIsNoReportIsALog(t *testing.T) {
	if got := Decode("killed\n"); got.LogTail != "killed\n" || got.Reason != "" {
		t.Errorf("got %+v", got)
	}
}

func TestSnippet(t *testing.T) {
	long := strings.Repeat("a", 100) + strings.Repeat("b", 100)
	tests := map[string]string{
		"":                      "",
		"one\n":                 "one",
		"1\n2\n3\n4\n5\n6\n7\n": "3\n4\n5\n6\n7",
		long:                    strings.Repeat("a", 58) + "..." + strings.Repeat("b", 59),
	}
	for log, want := range tests {
		if got := Snippet(log); got != want {
			t.Errorf("Snippet(%q) = %q, want %q", log, got, want)
		}
	}
}
