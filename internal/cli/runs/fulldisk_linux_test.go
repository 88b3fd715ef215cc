// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
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
		var out locked.Buffer
		err := locally(t.Context(), t, &out, fill+tc.script, "--launcher=command", "--run-name=try-1")
		if err == nil != (tc.want == "") || err != nil && fail.ReasonOf(err) != tc.want {
			t.Errorf("ended with %v, want %q:\n%s", err, tc.want, out.String())
		}
		if r := receiptOf(t, "try-1"); r.Reason != tc.want || r.Verdict == receipt.Succeeded != (tc.want == "") {
			t.Errorf("the receipt says %s %s: %s, want %q", r.Verdict, r.Reason, r.Message, tc.want)
		}
	}
}

// On volumes of other sizes another write is the first to fail. A run either does not begin, for want of room, or it ends with the verdict
// of its script. Between two sizes with other ends the test looks until they are a page apart, which is the least that a file takes, and
// above the least size with the verdict at each page, where the files that a run can do without fail.
func TestNoWriteChangesTheVerdict(t *testing.T) {
	const page, most, pagesAbove = 4, 4096, 24 // KiB
	ends := map[string]int{}
	least := most
	end := func(size int) string {
		end := endOnAVolume(t, size)
		ends[end]++
		if end == exitedWith7 {
			least = min(least, size)
		}
		return end
	}
	var between func(low, high int, atLow, atHigh string)
	between = func(low, high int, atLow, atHigh string) {
		if middle := (low + high) / 2 / page * page; middle > low && atLow != atHigh {
			atMiddle := end(middle)
			between(low, middle, atLow, atMiddle)
			between(middle, high, atMiddle, atHigh)
		}
	}
	between(page, most, end(page), end(most))
	for size := least + page; size <= least+pagesAbove*page; size += page {
		if end := end(size); end != exitedWith7 {
			t.Errorf("%d KiB were enough, and on %d KiB it ended so: %s", least, size, end)
		}
	}
	for end, times := range ends {
		t.Log(times, end)
	}
	const placesThatNeedRoom = 10 // the receipt's, the tree's, the records' of a node and a rank, and others
	if len(ends) < placesThatNeedRoom {
		t.Errorf("runs ended in these ways alone: %v", ends)
	}
}

const exitedWith7 = "exited with 7"

// ofThisRun matches what is different in each run: random parts of names.
var ofThisRun = regexp.MustCompile(`[0-9A-Z]{7,}`)

// endOnAVolume runs a script that exits with 7 on a volume of so many KiB, and returns how it ended.
func endOnAVolume(t *testing.T, size int) string {
	t.Helper()
	smallVolume(t, size)
	var out locked.Buffer
	err := locally(t.Context(), t, &out, "import sys; sys.exit(7)", "--launcher=command", "--nodes=1", "--run-name=try-1")
	end := ""
	switch {
	case err == nil:
	case fail.ReasonOf(err) == fail.RankFailed && strings.Contains(err.Error(), exitedWith7):
		end = exitedWith7
	// The last one is of a rank whose shim found no room for its end.
	case errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error()) ||
		strings.Contains(err.Error(), "started 0 of 1 ranks"):
		end = ofThisRun.ReplaceAllString(strings.ReplaceAll(err.Error(), os.Getenv("XDG_DATA_HOME"), ""), "N")
	}
	if end == "" {
		t.Errorf("%d KiB: %v; want no room, or the exit code\n%s", size, err, out.String())
	}
	if of, found := local.Find("try-1"); found { // else it did not begin
		if r := receiptOf(t, "try-1"); r.Verdict != receipt.Failed || (end == exitedWith7) != strings.Contains(r.Message, exitedWith7) {
			t.Errorf("%d KiB: the receipt in %s says %s %s %q", size, filepath.Base(of.Dir()), r.Verdict, r.Reason, r.Message)
		}
	}
	return end
}
