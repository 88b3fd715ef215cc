// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"testing"
	"time"
)

func TestClockEstimate(t *testing.T) {
	now := time.Now()
	tests := []struct {
		name string
		// before is the estimate before the request, took is the time that the request takes, and behind is how far the
		// node's clock is behind when the node answers.
		before, took, behind time.Duration
		want                 time.Duration
	}{
		{"equal", 0, 10 * time.Millisecond, 2 * time.Millisecond, 0},
		{"equal, and an answer that took long", 0, time.Minute, 20 * time.Second, 0},
		{"behind", 0, 10 * time.Millisecond, time.Hour, time.Hour},
		{"ahead", 0, 10 * time.Millisecond, -time.Hour, -time.Hour},
		{"still as before", time.Hour, time.Minute, time.Hour + 10*time.Second, time.Hour},
		{"set right meanwhile", time.Hour, 10 * time.Millisecond, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var c clock
			c.behind.Store(int64(test.before))
			// The node answers in the middle of the request.
			h := http.Header{clockHeader: {now.Add(test.took/2 - test.behind).UTC().Format(time.RFC3339Nano)}}
			c.observe(now, now.Add(test.took), h)
			if got := time.Duration(c.behind.Load()); (got-test.want).Abs() > test.took/2 || test.want == test.before && got != test.want {
				t.Errorf("behind by %s, want %s", got, test.want)
			}
		})
	}
}

func TestClockDifference(t *testing.T) {
	for _, test := range []struct {
		header string
		want   time.Duration
	}{
		{"", 0},
		{"yesterday", 0},
		{time.Now().UTC().Format(time.RFC3339Nano), 0},
		{time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano), time.Hour},
		{time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano), -time.Hour},
	} {
		if got := ClockDifference(http.Header{clockHeader: {test.header}}).Round(time.Minute); got != test.want {
			t.Errorf("%q: %s, want %s", test.header, got, test.want)
		}
	}
}
