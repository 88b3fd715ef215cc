// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// startTime is how long a launcher that is stopped may take to start its ranks.
const startTime = 5 * time.Second

// stopName is the name of the file that tells ranks that they are stopped.
const stopName = "stopping.json"

// stop sends SIGTERM, and SIGKILL after the grace. A later call counts only if it hastens the end.
func (j *job) stop(stop agent.Stop) {
	now := time.Now()
	quiet, _ := j.quietTime(now) // before the signal, which makes ranks print
	j.mu.Lock()
	defer j.mu.Unlock()
	grace := cmp.Or(max(stop.Grace, 0), j.status.Spec.Grace, j.grace)
	kill := now.Add(grace).UTC()
	switch {
	case !j.status.Ended.IsZero():
		return
	case !j.status.Stopping.IsZero():
		if stop.Hasten && kill.Before(j.status.Kill) {
			j.status.Kill = kill
			j.giveNotice()
			time.AfterFunc(grace, j.killNow)
			j.changed.fire()
		}
		return
	}
	j.status.Stopping, j.status.Kill = now.UTC(), kill
	j.status.StopCause, j.status.StopReason, j.status.Quiet = stop.Cause, stop.Reason, quiet
	j.giveNotice() // before the signal, so that a rank that gets it knows why
	var graceful context.Context
	graceful, j.killNow = context.WithTimeout(j.alive, grace)
	go j.endIn(graceful, stop.Cause)
	j.changed.fire()
}

// endIn sends SIGTERM, and SIGKILL when graceful is done and the job is not over.
func (j *job) endIn(graceful context.Context, cause agent.StopCause) {
	defer j.killNow()
	switch {
	case cause.Saves():
		handled := j.processes.warn(graceful)
		j.mu.Lock()
		j.status.NoHandler = !handled
		j.mu.Unlock()
	case cause == agent.StopHang:
		j.dumpUnread(graceful)
		j.processes.terminate(graceful)
	default:
		j.processes.terminate(graceful)
	}
	if <-graceful.Done(); !j.isOver() {
		j.processes.kill(j.alive)
	}
}

// reserveNotice takes room for a notice, because SIGTERM without one ends a rank that could have saved.
func reserveNotice(scratch string) *claimfile.Reservation {
	const noticeSize = 4096 // one page, as the longest reason is a sentence
	if scratch == "" {
		return nil
	}
	notice, err := claimfile.Reserve(filepath.Join(scratch, stopName), "room", noticeSize)
	if err != nil {
		return nil // then ranks save at SIGTERM
	}
	return notice
}

// giveNotice writes why and until when the ranks can save; mu is held.
func (j *job) giveNotice() {
	if j.notice == nil || !j.status.StopCause.Saves() {
		return
	}
	reason := j.status.StopReason
	if j.status.StopCause == agent.StopDeadline {
		reason = "the time of the training is over"
	}
	content, err := json.Marshal(agent.StopNotice{
		Cause: j.status.StopCause, Reason: reason, Until: float64(j.status.Kill.UnixMilli()) / 1000,
	})
	if err == nil {
		err = j.notice.Replace(content)
		j.notice = reserveNotice(j.scratch) // for a shorter time
	}
	if err != nil {
		j.log.Warn("Telling the ranks why they are stopped failed.", "job", j.status.ID, "error", err)
	}
}

// warn sends SIGTERM to the processes of the ranks that are to save, as soon as there are any. Launchers get none: they would kill their
// ranks after a time of their own. One that still has no rank after some seconds, such as one that waits for other nodes, has nothing to
// save, and gets it too. handled reports whether a process that got it has a handler, or whether that is not known.
func (p *processes) warn(ctx context.Context) (handled bool) {
	starting, done := context.WithTimeout(ctx, startTime)
	defer done()
	for {
		if count, handled := p.warnRanks(); count > 0 {
			return handled
		}
		if !sleepContext(starting, briefly) {
			p.terminate(ctx)
			return true
		}
	}
}

// warnRanks sends SIGTERM once. It returns how many processes got it, and whether one of them handles it.
func (p *processes) warnRanks() (count int, handled bool) {
	all := processTable()
	children := map[int][]int{}
	for _, process := range all {
		if !process.dead {
			children[process.parent] = append(children[process.parent], process.pid)
		}
	}
	for _, pid := range p.members() {
		if !isShim(pid) || len(children[pid]) == 0 { // a shim takes signals once it has a rank
			continue
		}
		for _, rank := range children[pid] {
			for _, saver := range savers(rank, children) {
				handled = handled || slices.ContainsFunc(ranksOf(saver, children), handlesTerm)
				if saver == rank {
					saver = pid // which passes it on, and remembers it
				}
				if syscall.Kill(saver, syscall.SIGTERM) == nil {
					count++
				}
			}
		}
	}
	return count, handled
}

// savers returns which processes of a rank get SIGTERM so that it can save:
//
//   - Nothing below a Python process. Its workers would end, and it would fail for want of them.
//   - A shell that handles the signal, and what runs below it.
//   - What runs below a shell that does not handle the signal, if that does. The shell itself would end at once, and the rank with it.
//   - If no process handles it, all of them.
func savers(pid int, children map[int][]int) (chosen []int) {
	if isPython(pid) {
		return []int{pid}
	}
	for _, child := range children[pid] {
		chosen = append(chosen, savers(child, children)...)
	}
	if handlesTerm(pid) || !slices.ContainsFunc(chosen, handlesTerm) {
		chosen = append(chosen, pid)
	}
	return chosen
}

// ranksOf returns the processes that save for a program: the ranks that it has started, if it is a launcher such as torchrun, whose own
// handler only passes the signal on; else the program itself. Ranks have LOCAL_RANK, which their launcher has not.
func ranksOf(program int, children map[int][]int) []int {
	if ranks := launched(program, children); len(ranks) > 0 {
		return ranks
	}
	return []int{program}
}

func launched(pid int, children map[int][]int) (ranks []int) {
	if bytes.Contains(environOf(pid), []byte("\x00LOCAL_RANK=")) {
		return savers(pid, children)
	}
	for _, child := range children[pid] {
		ranks = append(ranks, launched(child, children)...)
	}
	return ranks
}

// isShim reports whether a process is the shim of a rank.
func isShim(pid int) bool {
	line, _ := os.ReadFile(procPath(pid, "cmdline"))
	arguments := bytes.Split(line, []byte{0})
	return len(arguments) > 2 && string(arguments[1]) == "rank" && string(arguments[2]) == "--"
}

func isPython(pid int) bool {
	path, _ := os.Readlink(procPath(pid, "exe"))
	return strings.HasPrefix(filepath.Base(path), "python")
}

// handlesTerm reports whether a process has a handler for SIGTERM, by the mask that the kernel shows.
func handlesTerm(pid int) bool {
	status, _ := os.ReadFile(procPath(pid, "status"))
	for line := range strings.Lines(string(status)) {
		mask, ok := strings.CutPrefix(line, "SigCgt:")
		if !ok {
			continue
		}
		caught, err := hex.DecodeString(strings.TrimSpace(mask))
		const size = 8
		return err == nil && len(caught) == size && binary.BigEndian.Uint64(caught)>>(syscall.SIGTERM-1)&1 == 1
	}
	return false
}
