// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/process"
)

// starter starts components, and cancels the whole start as soon as one of them dies.
type starter struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	mu     sync.Mutex
	// started has the start times of the components that the starter had to start.
	started map[string]time.Time
}

func newStarter(ctx context.Context) *starter {
	ctx, cancel := context.WithCancelCause(ctx)
	return &starter{ctx: ctx, cancel: cancel, started: map[string]time.Time{}}
}

func (s *starter) stop() { s.cancel(nil) }

func (s *starter) start(specs ...process.Spec) error {
	for _, spec := range specs {
		now := time.Now()
		p, err := process.Start(spec)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		s.mu.Lock()
		s.started[spec.Name] = now
		s.mu.Unlock()
		go func() {
			select {
			case <-p.Exited():
				s.cancel(componentError(spec.Name, p.Err()))
			case <-s.ctx.Done():
			}
		}()
	}
	return nil
}

// until runs wait and returns its error or, if a component died in the meantime, the component's error.
func (s *starter) until(wait func(context.Context) error) error {
	return s.explain(wait(s.ctx))
}

// explain replaces the error of an interrupted wait with the death of the component that interrupted it.
func (s *starter) explain(err error) error {
	var dead deadComponent
	if cause := context.Cause(s.ctx); err != nil && errors.As(cause, &dead) {
		return dead
	}
	return err
}

// deadComponent is a component that ended while the cluster started.
type deadComponent struct {
	name, cause, tail string
	err               error
}

func (d deadComponent) Error() string {
	text := d.err.Error()
	if d.cause != "" {
		text += "\ncause: " + d.cause
	}
	return fmt.Sprintf("%s\nlast lines of %s:\n%s", text, process.LogPath(d.name), d.tail)
}

func (d deadComponent) Unwrap() error { return d.err }

func componentError(name string, err error) error {
	tail := process.Tail(name, 12)
	return deadComponent{name: name, cause: knownCause(tail), tail: tail, err: err}
}

// knownCauses are log lines with a known meaning, and the advice for each.
var knownCauses = []struct {
	line *regexp.Regexp
	what string
}{
	{regexp.MustCompile(`listen tcp ([0-9.]+:\d+): bind: address already in use`), "the address $1 is taken in the component's network " +
		"namespace; run localcluster down, then up"},
	{regexp.MustCompile(`bind: cannot assign requested address`), "the component's network namespace has lost its address; run localcluster " +
		"down, then up"},
	{regexp.MustCompile(`no space left on device`), "the disk is full; make room and run localcluster up again"},
	{regexp.MustCompile(`failed to find cgroup mounts|failed to find subsystem mount`), "the cgroup file system is not as the kubelet needs " +
		"it; see the README on cgroup v1 and v2"},
	{regexp.MustCompile(`too many open files`), "the limit of open files or of inotify instances is too low; raise " +
		"fs.inotify.max_user_instances and ulimit -n"},
	{regexp.MustCompile(`certificate has expired`), "the cluster's certificates are too old; run localcluster down, then up"},
}

func knownCause(log string) string {
	for _, c := range knownCauses {
		if m := c.line.FindStringSubmatchIndex(log); m != nil {
			return string(c.line.ExpandString(nil, c.what, log, m))
		}
	}
	return ""
}
