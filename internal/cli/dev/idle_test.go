package dev

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
)

// A terminal warns once before the release, and again after the next use.
func TestTerminalWarnsOfRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		used, away := time.Now(), false
		var log bytes.Buffer
		stop := watchIdle(t.Context(), command.TextLog(&log), func(context.Context) (*env.Idle, error) {
			if away {
				return nil, errors.New("the node does not answer")
			}
			return &env.Idle{Environment: "ns/env", Holder: lease.Holder{ID: "h-kim", Display: "h-kim"}, Timeout: 30 * time.Minute,
				Use: agent.Use{Kind: agent.JobUse, Idle: time.Since(used), At: used}}, nil
		})
		after := func(pass time.Duration, want string) {
			t.Helper()
			log.Reset()
			time.Sleep(pass)
			synctest.Wait()
			if log.String() != want {
				t.Errorf("after %s: %q, want %q", pass, log.String(), want)
			}
		}
		const warning = "warning: Environment ns/env of h-kim has not been used for 20m0s (last: a job). It is released in 10m0s unless somebody " +
			"uses it; claims stay.\n"
		after(19*time.Minute, "")
		after(time.Minute, warning)
		after(5*time.Minute, "")
		used, away = time.Now(), true
		after(25*time.Minute, "")
		used, away = time.Now(), false
		after(20*time.Minute, warning)
		stop()
		used = time.Now().Add(-20 * time.Minute)
		after(5*time.Minute, "")
	})
}
