// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// sweepInWords returns what a sweep does after an event.
func sweepInWords(effects []effect) string {
	var words []string
	for _, e := range effects {
		switch e := e.(type) {
		case startTrial:
			words = append(words, fmt.Sprintf("start %d", e))
		case cancelTrial:
			words = append(words, fmt.Sprintf("cancel %d", e))
		case question:
			words = append(words, "ask "+e.keys)
		case note:
			words = append(words, "print")
		case order:
			words = append(words, string(e))
		}
	}
	return strings.Join(words, "; ")
}

// TestSweepCourse lists what a sweep of four trials does about each thing that may happen.
func TestSweepCourse(t *testing.T) {
	type row struct {
		event event
		want  string
	}
	ended := func(trial int) trialOver { return trialOver{trial, true, nil} }
	left := func(trial int) trialOver { return trialOver{trial, true, &command.Exit{Code: command.Interrupted}} }
	broken := errors.New("broken")
	const cancelBoth = "close the question; print; stop starting; cancel 0; cancel 1"
	for _, tc := range []struct {
		name   string
		stands [4]stand
		keys   bool
		begin  string
		rows   []row
		failed bool
	}{
		{name: "to the end", begin: "start 0; start 1", rows: []row{
			{ended(1), "start 2"}, {ended(0), "start 3"}, {ended(3), ""}, {ended(2), "end the sweep"}}},
		{name: "all have ended", stands: [4]stand{trialEnded, trialEnded, trialEnded, trialEnded}, begin: "end the sweep"},
		{name: "one has ended, and one is in progress", stands: [4]stand{trialEnded, trialWaits, trialRuns, trialWaits},
			begin: "start 2; start 1", rows: []row{{ended(2), "start 3"}, {ended(1), ""}, {ended(3), "end the sweep"}}},
		{name: "more are in progress than may be", stands: [4]stand{trialRuns, trialRuns, trialRuns, trialWaits},
			begin: "start 0; start 1; start 2", rows: []row{{ended(0), ""}, {ended(1), "start 3"}, {ended(2), ""}, {ended(3), "end the sweep"}}},
		{name: "Ctrl-C without a terminal", begin: "start 0; start 1", rows: []row{
			{os.Interrupt, cancelBoth}, {ended(0), ""}, {ended(1), "end the sweep"}}},
		{name: "SIGTERM on a terminal", keys: true, begin: "start 0; start 1", rows: []row{{syscall.SIGTERM, cancelBoth}}},
		{name: "Ctrl-C, and then a", keys: true, begin: "start 0; start 1", rows: []row{
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {key('a'), cancelBoth}, {left(0), ""}, {left(1), "end the sweep"}}},
		{name: "Ctrl-C twice", keys: true, begin: "start 0; start 1", rows: []row{
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {os.Interrupt, cancelBoth}}},
		{name: "Ctrl-C twice on a terminal that passes on keys", keys: true, begin: "start 0; start 1", rows: []row{
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {key(ctrlC), cancelBoth}}},
		{name: "three times", begin: "start 0; start 1", rows: []row{
			{os.Interrupt, cancelBoth}, {os.Interrupt, "print; leave the trials"}, {left(0), ""}, {left(1), "end the sweep"}}},
		{name: "four times", begin: "start 0; start 1", rows: []row{
			{os.Interrupt, cancelBoth}, {os.Interrupt, "print; leave the trials"}, {os.Interrupt, "end the sweep"}}},
		{name: "only the second one: the rest goes on", keys: true, begin: "start 0; start 1", rows: []row{
			{ended(0), "start 2"}, {os.Interrupt, "ask a, 1, 2, d or another key? "}, {key('2'), "close the question; cancel 2"},
			{ended(2), "start 3"}, {ended(1), ""}, {ended(3), "end the sweep"}}},
		{name: "one that has ended since", keys: true, begin: "start 0; start 1", rows: []row{
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {ended(0), "start 2"}, {key('1'), "close the question"}}},
		{name: "another digit, and another key", keys: true, begin: "start 0; start 1", rows: []row{
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {key('3'), "close the question"}, {key('a'), ""},
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {key('x'), "close the question"}}},
		{name: "d: the trials continue, and none is started", keys: true, begin: "start 0; start 1", rows: []row{
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {key('d'), "close the question; leave the trials"},
			{ended(0), ""}, {ended(1), "end the sweep"}}},
		{name: "d, and then Ctrl-C twice while a folder is sent", keys: true, begin: "start 0; start 1", rows: []row{
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {key('d'), "close the question; leave the trials"},
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {os.Interrupt, cancelBoth}}},
		{name: "no keys come any more", keys: true, begin: "start 0; start 1", rows: []row{
			{os.Interrupt, "ask a, 1, 2, d or another key? "}, {noKeys{}, "close the question"}, {os.Interrupt, cancelBoth}}},
		{name: "a request is refused", begin: "start 0; start 1", failed: true, rows: []row{
			{trialOver{0, false, broken}, ""}, {ended(1), "end the sweep"}}},
		{name: "a start is interrupted", begin: "start 0; start 1", rows: []row{
			{os.Interrupt, cancelBoth}, {trialOver{1, false, broken}, ""}, {ended(0), "end the sweep"}}},
		{name: "a folder cannot be sent", begin: "start 0; start 1", failed: true, rows: []row{
			{trialOver{0, true, broken}, ""}, {ended(1), "end the sweep"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &sweepCourse{trials: make([]trial, len(tc.stands)), stands: tc.stands[:], parallel: 2, keys: tc.keys}
			if got := sweepInWords(c.begin()); got != tc.begin {
				t.Errorf("begin: got %q, want %q", got, tc.begin)
			}
			for i, row := range tc.rows {
				if got := sweepInWords(c.on(row.event)); got != row.want {
					t.Errorf("%d. %v: got %q, want %q", i+1, row.event, got, row.want)
				}
			}
			if (c.failed != nil) != tc.failed {
				t.Errorf("got error %v, want one: %t", c.failed, tc.failed)
			}
		})
	}
}
