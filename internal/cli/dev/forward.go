// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"syscall"
)

type dialer func(ctx context.Context) (net.Conn, error)

// forward listens on this machine's loopback until ctx ends, and connects callers by dial. It uses the preferred port,
// or another one if that is taken. wait returns when all connections are closed.
func forward(ctx context.Context, log *slog.Logger, preferred int, dial dialer) (port int, wait func(), err error) {
	listener, err := listen(preferred)
	if err != nil {
		return 0, nil, err
	}
	var group sync.WaitGroup
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(closed); listener.Close() })
	group.Go(func() {
		defer func() {
			if !stop() {
				<-closed // Accept returns a moment before the kernel has closed the port
			}
		}()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the listener was closed
			}
			group.Go(func() {
				if err := carry(ctx, conn, dial); err != nil && ctx.Err() == nil {
					log.Warn(fmt.Sprintf("A connection to port %d was not forwarded: %v", preferred, err))
				}
			})
		}
	})
	return listener.Addr().(*net.TCPAddr).Port, group.Wait, nil
}

func listen(preferred int) (net.Listener, error) {
	const loopback = "127.0.0.1"
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(preferred)))
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
		listener, err = net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("listening on this machine: %w", err)
	}
	return listener, nil
}

// carry connects conn with the remote end until either closes, or ctx ends.
func carry(ctx context.Context, conn net.Conn, dial dialer) error {
	defer conn.Close()
	remote, err := dial(ctx)
	if err != nil {
		return err
	}
	defer remote.Close()
	// Closing both ends both copies.
	hangUp := sync.OnceFunc(func() { conn.Close(); remote.Close() })
	defer context.AfterFunc(ctx, hangUp)()
	back := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, remote)
		hangUp()
		back <- err
	}()
	_, _ = io.Copy(remote, conn)
	hangUp()
	if err := <-back; err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}
