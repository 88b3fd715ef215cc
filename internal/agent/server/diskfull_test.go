// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// smallRecords gives the records of jobs a volume of that size.
func (n *node) smallRecords(size string) (dir string) {
	n.t.Helper()
	dir = filepath.Join(n.Config.Paths.Workspace, ".mlenv", "runs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	smallVolume(n.t, dir, size)
	return dir
}

func smallVolume(t *testing.T, dir, size string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); errors.Is(err, unix.EPERM) {
		t.Skip("only root can mount a small volume")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// A rank that fills /tmp gets the notice of its stop, without which it would end instead of saving.
func TestNoticeWithFullTmp(t *testing.T) {
	temp := t.TempDir()
	smallVolume(t, temp, "1m")
	t.Setenv("TMPDIR", temp)
	n := newNode(t)
	n.script("saves.sh", `trap 'cat "$MLENV_STOP_FILE"; exit' TERM
cat /dev/zero >"$(dirname "$MLENV_STOP_FILE")/fill"; touch up-0; while :; do sleep 0.02; done`)
	n.stopped(command("saves.sh"), agent.Stop{Cause: agent.StopCancelled, Reason: "enough", Grace: timeToSave})
	n.wait("saves")
	if log := n.log("saves", "rank-0", 0); !strings.Contains(log, `"reason":"enough"`) {
		t.Errorf("the rank read %q, want the notice", log)
	}
}

// A rank that fills the volume of its own record does not hang, and the record has its exit code and its last lines.
func TestRankFillsItsVolume(t *testing.T) {
	n := newNode(t)
	records := n.smallRecords("4m")
	n.script("fill.sh", `cat /dev/zero >"$MLENV_RUN_DIR/fill"
head -c 3000000 /dev/zero | tr '\0' 'x'
printf '\nTraceback (most recent call last):\n  File "train.py", line 7, in <module>\nOSError: [Errno 28] No space left on `+
		`device\n'; exit 1`)
	status := n.run("job", command("fill.sh"))
	if len(status.Ranks) != 1 || status.Ranks[0].Exit.Code != 1 || status.Ranks[0].Python == nil ||
		status.Ranks[0].Python.Message != "[Errno 28] No space left on device" || !status.Full {
		t.Errorf("ended with %+v, want exit code 1 and the error of its disk, and a full workspace", status.Ranks)
	}
	if recorded, err := record.Dir(filepath.Join(records, "job")).ReadRank(0); err != nil || recorded.Exit.Code != 1 ||
		recorded.Python == nil {
		t.Errorf("recorded %+v, %v; want exit code 1 and the error", recorded, err)
	}
}

// A job starts only if its node and each of its ranks have room for their end: it is refused with the reason, not ended by a launcher that
// started no rank.
func TestNoRoomForTheEndOfRanks(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	n := newNode(t)
	records := n.smallRecords("200k") // enough for the end of the node or of a rank
	n.script("ok.sh", "exit 0")
	if _, err := n.Client.StartJob(t.Context(), "job", command("ok.sh")); fail.ReasonOf(err) != fail.DiskFull {
		t.Fatalf("started with %v, want %s", err, fail.DiskFull)
	}
	if left, err := filepath.Glob(filepath.Join(temp, "mlenv-job-*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v; want no scratch files of a job that did not begin", left, err)
	}
	if left, err := filepath.Glob(filepath.Join(records, "job", ".*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v; want no room that no rank uses", left, err)
	}
}
