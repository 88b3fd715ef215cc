// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clockHeader has the sender's time, in every request and every answer.
const clockHeader = "Mlenv-Clock"

// StampClock writes this machine's time into a header.
func StampClock(h http.Header) { h.Set(clockHeader, time.Now().UTC().Format(time.RFC3339Nano)) }

// ClockDifference returns how far the clock of a request's sender is behind this one, the time on the way included. It is 0 if that
// is less than a second, or unknown.
func ClockDifference(h http.Header) time.Duration {
	if at, err := time.Parse(time.RFC3339Nano, h.Get(clockHeader)); err == nil && time.Since(at).Abs() > time.Second {
		return time.Since(at)
	}
	return 0
}

// clock estimates how far a node's clock is behind this one.
type clock struct{ behind atomic.Int64 }

// observe corrects the estimate if it contradicts an answer, whose time the node wrote between sent and received. Clocks that
// agree within the time of a request count as equal.
func (c *clock) observe(sent, received time.Time, h http.Header) {
	at, err := time.Parse(time.RFC3339Nano, h.Get(clockHeader))
	if err != nil {
		return
	}
	least, most := sent.Sub(at), received.Sub(at)
	if behind := time.Duration(c.behind.Load()); behind < least || behind > most {
		c.behind.Store(int64((least + most) / 2))
	}
}

// Behind returns how far the node's clock is behind this one, by the answers so far. The times in a JobStatus are corrected by it.
func (c *Client) Behind() time.Duration { return time.Duration(c.clock.behind.Load()) }

// shiftTimes moves all times of a status. The times of earlier attempts stay: the step wrote them.
func (s *JobStatus) shiftTimes(by time.Duration) {
	if by == 0 {
		return
	}
	times := []*time.Time{&s.Started, &s.Ended, &s.Stopping, &s.Kill, &s.Spec.Deadline}
	for i := range s.Ranks {
		rank := &s.Ranks[i]
		times = append(times, &rank.Started, &rank.Ended)
		if rank.Python != nil {
			times = append(times, &rank.Python.Seen)
		}
	}
	for _, at := range times {
		if !at.IsZero() {
			*at = at.Add(by)
		}
	}
}
