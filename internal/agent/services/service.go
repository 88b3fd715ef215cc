// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/connlimit"
)

// grace is the time between SIGTERM and SIGKILL of a service.
const grace = 5 * time.Second

// pauses bound the time between a service's end and its next start.
type pauses struct {
	first, most time.Duration
	// steady is how long a service must run to return to the first pause.
	steady time.Duration
}

func (p pauses) next(last, ran time.Duration) time.Duration {
	if last == 0 || ran >= p.steady {
		return p.first
	}
	return min(2*last, p.most)
}

// service is a requested service with one credential.
type service struct {
	program
	credential string
	pauses     pauses
	log        *slog.Logger
	output     *output
	front      *http.Server // of the gate
	stop       context.CancelFunc
	// over is closed when no process is left.
	over chan struct{}

	mu     sync.Mutex
	status agent.ServiceStatus
}

// refuse replaces run if the service cannot run.
func (s *service) refuse(state agent.ServiceState, problem string) {
	s.status.State, s.status.Problem = state, problem
	s.log.Warn(fmt.Sprintf("Service %s is not started: %s.", s.status.Name, problem))
	close(s.over)
}

func (s *service) run(ctx context.Context) {
	defer close(s.over)
	defer s.close()
	for pause := time.Duration(0); ; {
		began := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		pause = s.pauses.next(pause, time.Since(began))
		problem := err.Error()
		if line := s.output.lastLine(); line != "" {
			problem += ": " + line
		}
		s.log.Warn(fmt.Sprintf("Service %s is started again in %s: %s.", s.status.Name, pause, problem))
		s.change(func(status *agent.ServiceStatus) {
			status.State, status.PID, status.Problem = agent.ServiceRestarting, 0, problem
		})
		select {
		case <-time.After(pause):
			s.change(func(status *agent.ServiceStatus) { status.Restarts++ })
		case <-ctx.Done():
			return
		}
	}
}

// open opens the gate, once. The gate stays open while the program restarts, because a port-forward ends when its port closes.
func (s *service) open() error {
	if s.gate == nil || s.front != nil {
		return nil
	}
	listener, err := net.Listen("tcp", s.public)
	if err != nil {
		return err
	}
	s.front = s.gate.server(slog.NewLogLogger(s.log.Handler(), slog.LevelDebug))
	go func() { _ = s.front.Serve(connlimit.New(listener, connlimit.Unproven)) }() // ends when it is closed
	return nil
}

func (s *service) close() {
	if s.front != nil {
		_ = s.front.Close()
	}
	s.output.Close()
}

func (s *service) once(ctx context.Context) error {
	if err := errors.Join(s.output.open(), os.MkdirAll(s.dir, 0o775)); err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return fmt.Errorf("listening for it: %w", err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	process := exec.CommandContext(ctx, s.path, s.args...)
	process.Dir, process.Env = s.dir, s.env
	process.Stdout, process.Stderr = writer, writer
	// Its children end with its group. Background processes of a terminal survive, as they have a session of their own.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Cancel = func() error { return syscall.Kill(-process.Process.Pid, syscall.SIGTERM) }
	process.WaitDelay = grace
	err = process.Start()
	writer.Close()
	if err != nil {
		return err
	}
	pid := process.Process.Pid
	s.log.Info(fmt.Sprintf("Service %s is started for port %d.", s.status.Name, s.status.Port))
	s.change(func(status *agent.ServiceStatus) {
		status.State, status.PID = agent.ServiceRunning, pid
	})
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(s.output, reader) // ends with the last writer, or at the deadline
	}()
	err = process.Wait()
	_ = syscall.Kill(-pid, syscall.SIGKILL) // whatever is left of the group
	_ = reader.SetReadDeadline(time.Now().Add(time.Second))
	<-copied
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return fmt.Errorf("it ended with %s", exit.ProcessState)
	case err != nil:
		return err
	}
	return errors.New("it ended by itself")
}

func (s *service) change(f func(*agent.ServiceStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.status)
}

func (s *service) currentStatus() agent.ServiceStatus {
	s.mu.Lock()
	status := s.status
	s.mu.Unlock()
	if status.State == agent.ServiceRunning {
		conn, err := net.DialTimeout("tcp", s.listens, time.Second)
		if err == nil {
			conn.Close()
		}
		status.Answers = err == nil
	}
	return status
}
