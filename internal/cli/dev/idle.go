// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"log/slog"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// idleEvery is how often the reaper looks, and so how often a terminal asks what it will do.
const idleEvery = time.Minute

// warnIdle warns once, until stop is called, before the reaper releases the environment: a terminal in which mlenv waits for changes is
// no use of it.
func warnIdle(ctx context.Context, log *slog.Logger, clients *kube.Clients, name string) (stop func()) {
	e := env.Of(clients, name)
	return watchIdle(ctx, log, func(ctx context.Context) (*env.Idle, error) {
		held, err := e.Lease(log).Find(ctx)
		if err != nil {
			return nil, err
		}
		return e.Idle(ctx, held)
	})
}

// watchIdle calls look periodically. What it cannot find out is no news: the reaper warns too.
func watchIdle(ctx context.Context, log *slog.Logger, look func(context.Context) (*env.Idle, error)) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	go func() {
		ticker := time.NewTicker(idleEvery)
		defer ticker.Stop()
		var warned time.Time // the last use of the last warning
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			if idle, err := look(ctx); err == nil && idle != nil && idle.Near() && !idle.Use.At.Equal(warned) {
				warned = idle.Use.At
				log.Warn(idle.String())
			}
		}
	}()
	return stop
}
