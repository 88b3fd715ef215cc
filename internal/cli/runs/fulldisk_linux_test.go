// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// smallVolume makes a volume of so many KiB the home of local runs.
func smallVolume(t *testing.T, size int) {
	t.Helper()
	withoutCluster(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", size)); errors.Is(err, unix.EPERM) {
		t.Skip("only root can mount a small volume")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("XDG_DATA_HOME", dir)
}

// A script that fills the disk of the run ends as it ended, for this mlenv and for later ones.
func TestScriptFillsTheDisk(t *testing.T) {
	for _, tc := range []struct {
		script string
		want   fail.Reason
	}{{"", ""}, {"sys.exit(7)", fail.RankFailed}} {
		smallVolume(t, 16<<10)
		const fill = `import os, sys
with open(f"fill-{os.environ['NODE_RANK']}", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 12))
    except OSError:
        pass
`
		var out bytes.Buffer
		err := locally(t.Context(), t, &out, fill+tc.script, "--launcher=command", "--run-name=try-1")
		if err == nil != (tc.want == "") || err != nil && fail.ReasonOf(err) != tc.want {
			t.Errorf("ended with %v, want %q:\n%s", err, tc.want, out.String())
		}
		if r := receiptOf(t, "try-1"); r.Reason != tc.want || r.Verdict == receipt.Succeeded != (tc.want == "") {
			t.Errorf("the receipt says %s %s: %s, want %q", r.Verdict, r.Reason, r.Message, tc.want)
		}
	}
}

// On volumes of all sizes another write is the first to fail each time. A run either does not begin, for want of room, or it ends with the
// verdict of its script.
func TestNoWriteChangesTheVerdict(t *testing.T) {
	before, ended := 0, 0
	for size := 512; size <= 4096 && ended < 3; size += 256 {
		smallVolume(t, size)
		var out bytes.Buffer
		err := locally(t.Context(), t, &out, "import sys; sys.exit(7)", "--launcher=command", "--nodes=1", "--run-name=try-1")
		// The last one is of a rank whose shim found no room for its end.
		full := err != nil && (errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error()) ||
			strings.Contains(err.Error(), "started 0 of 1 ranks"))
		failed := err != nil && fail.ReasonOf(err) == fail.RankFailed && strings.Contains(err.Error(), "exited with 7")
		switch {
		case failed:
			ended++
		case full && ended == 0:
			before++
		default:
			t.Errorf("%d KiB: %v; want no room, or the exit code\n%s", size, err, out.String())
		}
		of, found := local.Find("try-1")
		if !found {
			continue // it did not begin
		}
		if r := receiptOf(t, "try-1"); r.Verdict != receipt.Failed || failed != strings.Contains(r.Message, "exited with 7") {
			t.Errorf("%d KiB: the receipt in %s says %s %s %q", size, filepath.Base(of.Dir()), r.Verdict, r.Reason, r.Message)
		}
	}
	if before == 0 || ended == 0 {
		t.Errorf("%d sizes had no room and %d had: want some of both", before, ended)
	}
}
