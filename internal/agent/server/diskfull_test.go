// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
)

// A rank that fills the volume of its own record does not hang, and the record has its exit code and its last lines.
func TestRankFillsItsVolume(t *testing.T) {
	n := newNode(t)
	records := filepath.Join(n.Config.Paths.Workspace, ".mlenv", "runs")
	if err := os.MkdirAll(records, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", records, "tmpfs", 0, "size=4m"); errors.Is(err, unix.EPERM) {
		t.Skip("only root can mount a small volume")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(records, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n.script("fill.sh", `cat /dev/zero >"$MLENV_RUN_DIR/fill"
head -c 3000000 /dev/zero | tr '\0' 'x'
printf '\nTraceback (most recent call last):\n  File "train.py", line 7, in <module>\nOSError: [Errno 28] No space left on `+
		`device\n'; exit 1`)
	status := n.run("job", command("fill.sh"))
	if len(status.Ranks) != 1 || status.Ranks[0].Exit.Code != 1 || status.Ranks[0].Python == nil ||
		status.Ranks[0].Python.Message != "[Errno 28] No space left on device" {
		t.Errorf("ended with %+v, want exit code 1 and the error of its disk", status.Ranks)
	}
	if recorded, err := record.Dir(filepath.Join(records, "job")).ReadRank(0); err != nil || recorded.Exit.Code != 1 ||
		recorded.Python == nil {
		t.Errorf("recorded %+v, %v; want exit code 1 and the error", recorded, err)
	}
}
