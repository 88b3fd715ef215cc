// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"slices"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// FuzzFind: a training writes its own errors and last lines. Find blames one of the failed ranks, with a reason and
// advice.
func FuzzFind(f *testing.F) {
	f.Add("ValueError", "the loss is nan", "Connection reset by peer", 1, "", int64(5), int64(3))
	f.Add("", "", "/workspace/.mlenv/trees/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef/train.py", -1, "SIGKILL", int64(0),
		int64(-9))
	f.Fuzz(func(t *testing.T, kind, message, line string, code int, signal string, first, second int64) {
		ended := func(seconds int64) time.Time { return time.Unix(1e9+seconds%1e6, 0) }
		ranks := []agent.RankStatus{
			{Rank: 0, Ended: ended(first), Exit: agent.Exit{Code: code, Signal: signal}, Tail: []string{line},
				Python: &agent.PythonError{Type: kind, Message: message}},
			{Rank: 1, Ended: ended(second), Exit: agent.Exit{Code: 1}, Tail: []string{message}},
		}
		cause, found := Find([]agent.JobStatus{{Ranks: ranks[:1]}, {Ranks: ranks[1:]}})
		if !found || cause.Rank.Rank != 0 && cause.Rank.Rank != 1 {
			t.Fatalf("found %t, %+v", found, cause)
		}
		err := cause.Err(Job{Record: "/record"})
		if reason := fail.ReasonOf(err); !slices.Contains([]fail.Reason{fail.RankFailed, fail.OutOfMemory, fail.DiskFull}, reason) ||
			fail.NextOf(err) == "" {
			t.Errorf("reason %s, next %q of %v", reason, fail.NextOf(err), err)
		}
	})
}
