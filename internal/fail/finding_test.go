// SPDX-License-Identifier: Apache-2.0

package fail

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestFindingIsAnError(t *testing.T) {
	finding := Finding{Reason: GPUMissing, Object: "node 1", Seen: "7 GPUs", Wanted: "8", Next: "nvidia-smi"}
	err := fmt.Errorf("provisioning: %w", finding.Err("counting the GPUs of"))
	if got, want := err.Error(), "provisioning: counting the GPUs of node 1: 7 GPUs: want 8"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if ReasonOf(err) != GPUMissing || NextOf(err) != "nvidia-smi" {
		t.Errorf("reason %s and next %q are not the finding's", ReasonOf(err), NextOf(err))
	}
}

func TestFindingOfError(t *testing.T) {
	finding := Finding{Reason: GPUMissing, Object: "node 1", Seen: "7 GPUs", Wanted: "8", Next: "nvidia-smi"}
	made := finding.Err("counting the GPUs of")
	for _, tc := range []struct {
		err  error
		want Finding
	}{
		{made, finding},
		{Advise(made, "look"), Finding{Reason: GPUMissing, Object: "node 1", Seen: "7 GPUs", Wanted: "8", Next: "look"}},
		{fmt.Errorf("provisioning: %w", made), Finding{Reason: GPUMissing, Seen: "provisioning: counting the GPUs of node 1: 7 GPUs: want 8",
			Next: "nvidia-smi"}},
		{errors.New("no answer"), Finding{Reason: Internal, Seen: "no answer"}},
	} {
		if got := FindingOf(tc.err); got != tc.want {
			t.Errorf("FindingOf(%q) = %+v, want %+v", tc.err, got, tc.want)
		}
	}
}

func TestPrintFinding(t *testing.T) {
	var out strings.Builder
	Finding{Reason: GPUMissing, Level: Broken, Object: "node 1", Seen: "7 GPUs\nof 8", Next: "nvidia-smi"}.Print(&out, "pods do not start")
	want := "GPUMissing: node 1 (broken: pods do not start)\n  seen: 7 GPUs\n        of 8\n  next: nvidia-smi\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestLevelsAreOrdered(t *testing.T) {
	if Broken.Compare(Note) >= 0 || Suspicious.Compare(Degraded) <= 0 || Note.Compare(Level("note")) != 0 {
		t.Error("want broken, degraded, suspicious, note")
	}
}
