//go:build unix

package dev

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// windowChanges tells when the terminal has another size, until ctx ends.
func windowChanges(ctx context.Context) <-chan os.Signal {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	context.AfterFunc(ctx, func() { signal.Stop(changes) })
	return changes
}
