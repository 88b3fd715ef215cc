// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// event is what happens to a follower: a launch.Event, an os.Signal, or one of these.
type event any

type (
	// key is one that the user pressed.
	key byte
	// noKeys means that no further key comes.
	noKeys struct{}
	// uploaded is the end of an upload.
	uploaded struct{ err error }
	// cancelAnswer is the answer to the order to cancel the run.
	cancelAnswer struct{ err error }
	// tooLate means that a run has not ended in time after it was cancelled.
	tooLate struct{}
	// runEnded is the end of the run.
	runEnded struct {
		outcome launch.Outcome
		err     error
	}
)

// effect is what an event leads to: an order or one of these.
type effect any

type (
	// note is a line for the user.
	note string
	// leave ends the follower; over is false if the run continues.
	leave struct {
		outcome launch.Outcome
		over    bool
		err     error
	}
)

// plainEffect is an effect that needs no more than its name.
type plainEffect string

const (
	ask           plainEffect = "ask the user"
	closeQuestion plainEffect = "close the question"
	cancelRun     plainEffect = "cancel the run"
	startTimer    plainEffect = "start the timer"
	upload        plainEffect = "upload the folder"
	endUpload     plainEffect = "end the upload"
	// hide ends the sign that this program is there to upload the folder.
	hide plainEffect = "hide"
	// endWaiting ends what looks after the run until its teardown.
	endWaiting plainEffect = "end waiting"
)

// course is the state of a follower. It decides, and does nothing itself.
type course struct {
	run *v1.PipelineRun
	// keys is true while the user can answer a question; else a signal cancels the run.
	keys bool
	// folder is true if the run trains a folder of this machine, and needed as long as the run needs this program for it.
	folder, needed bool
	// detach and again are the fields of follower with these names.
	detach, again bool
	// asked is true while a question is open, and cancelled when the run was cancelled.
	asked, cancelled bool
	// uploadEnded is true when the result of the upload does not matter any more.
	uploadEnded bool
	uploadError error
	effects     []effect
}

// on takes an event, and returns what is to be done.
func (c *course) on(e event) []effect {
	c.effects = nil
	switch e := e.(type) {
	case launch.Event:
		c.seen(e)
	case uploaded:
		c.uploaded(e.err)
	case os.Signal:
		c.signalled(e)
	case key:
		c.answered(e)
	case noKeys:
		c.keys = false
		c.answered(0)
	case cancelAnswer:
		c.cancelAnswered(e.err)
	case tooLate:
		c.leave(&command.Exit{Code: command.Interrupted, Err: fail.Advise(
			fail.Becausef(fail.TeardownIncomplete, "waiting for the end of the cancelled run %s: it has not ended after %s",
				c.run.Name, humanize.Duration(cleanupTime(c.run))),
			"mlenv status %s -n %s", c.run.Name, c.run.Namespace)})
	case runEnded:
		c.ended(e.outcome, e.err)
	}
	return c.effects
}

func (c *course) seen(e launch.Event) {
	ended, teardown := e.Kind == launch.TaskEnded, e.Kind == launch.TaskStarted && e.Task == "teardown"
	switch {
	case !c.folder:
	case ended && e.Task == "provision" && e.Ended.Status == run.Succeeded:
		c.do(upload)
	case ended && e.Task == "sync-repo", teardown:
		// The tree is on the nodes, or the run ends without it and reports why. A run that is followed again may be
		// long past this.
		c.uploadEnded = true
		c.do(endUpload)
	}
	if teardown {
		c.do(endWaiting)
	}
	if c.again && e.Early && !c.cancelled {
		c.leave(errEarly)
	}
}

func (c *course) uploaded(err error) {
	c.do(hide)
	switch {
	case c.cancelled:
	case err != nil && !c.uploadEnded:
		c.uploadError = fmt.Errorf("uploading the folder: %w", err)
		c.do(note("== "+c.uploadError.Error()), cancelRun)
	case c.detach:
		c.leave(nil)
	case err == nil:
		c.do(note("== the folder is on the nodes; the run no longer needs this machine"))
		fallthrough
	default:
		c.needed = false
	}
}

func (c *course) signalled(s os.Signal) {
	switch {
	case c.cancelled:
		c.leaveAsked()
	case c.asked || !c.keys || s != os.Interrupt:
		c.cancel()
	default:
		c.asked = true
		c.do(ask)
	}
}

func (c *course) answered(k key) {
	if !c.asked {
		return
	}
	c.asked = false
	switch k {
	case 'c', 'C', ctrlC:
		c.cancel()
	case 'd', 'D':
		c.leaveAsked()
	default:
		c.do(closeQuestion)
	}
}

// leaveAsked leaves the run as soon as the run does not need this program, or at once if the run is being cancelled.
func (c *course) leaveAsked() {
	switch {
	case c.cancelled:
		c.do(note(fmt.Sprintf("== leaving; the run is being cancelled: mlenv status %s -n %s", c.run.Name, c.run.Namespace)))
		c.leave(&command.Exit{Code: command.Interrupted})
	case !c.needed:
		c.leave(nil)
	default:
		c.detach = true
		c.do(closeQuestion, note("== the folder is not on the nodes yet; this program ends as soon as it is"))
	}
}

func (c *course) cancel() {
	c.asked = false
	c.do(closeQuestion, note("== cancelling; everything is released, and claims stay"), cancelRun)
}

func (c *course) cancelAnswered(err error) {
	switch {
	case err == nil:
		c.cancelled = true
		c.do(startTimer)
	case c.uploadError != nil:
		c.leave(unfollowed(c.run, errors.Join(c.uploadError, err)))
	default:
		c.do(note(fmt.Sprintf("== the run was not cancelled: %v", err)))
	}
}

// ended decides what a run that was cancelled for its upload has ended of: it may have failed before, which is why its upload did.
func (c *course) ended(outcome launch.Outcome, err error) {
	switch {
	case err != nil:
		err = unfollowed(outcome.Run, errors.Join(c.uploadError, err))
	case c.uploadError == nil:
	case outcome.Reason == fail.Cancelled:
		err = c.uploadError
	default:
		outcome.Cancelled = false
	}
	c.do(leave{outcome, true, err})
}

func (c *course) leave(err error) { c.do(leave{launch.Outcome{Run: c.run}, false, err}) }

func (c *course) do(effects ...effect) { c.effects = append(c.effects, effects...) }

// cleanupTime bounds the end of a cancelled run, with the time that its ranks have to save, which is part of the finally timeout.
func cleanupTime(of *v1.PipelineRun) time.Duration {
	const spare = 2 * time.Minute // for Tekton to start teardown and to end the run
	longest := run.TeardownTime
	if t := of.Spec.Timeouts; t != nil && t.Finally != nil {
		longest = max(longest, t.Finally.Duration)
	}
	return longest + spare
}

// ctrlC is the key on a terminal that passes on each key and makes no signal of it.
const ctrlC = 3

// errEarly means that the pods of a run came before their service account had its pull secrets, and that no step of the run has run.
var errEarly = errors.New("the pods of the run came before the pull secrets of their service account")

// unfollowed returns the error of following a run whose end could not be seen, such as for a login that has expired.
func unfollowed(of *v1.PipelineRun, err error) error {
	seen := "the run continues"
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case of.IsDone():
		seen = "the run has ended"
	case of.IsCancelled(), of.IsGracefullyCancelled():
		seen = "the run is being cancelled"
	}
	next := strings.TrimPrefix(fmt.Sprintf("%s\nmlenv status %s -n %s", fail.NextOf(err), of.Name, of.Namespace), "\n")
	return &command.Exit{Code: command.Unfollowed, Err: fail.Advise(fmt.Errorf("following run %s: %s without mlenv: %w", of.Name, seen, err),
		"%s", next)}
}
