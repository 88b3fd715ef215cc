// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// A shell whose terminal is gone ends, and so does everything that it started, except processes that ignore SIGHUP.
func TestEndShell(t *testing.T) {
	client := agenttest.Start(t, 1)[0].Client
	// If the tests ran under nohup, every process that they start would ignore SIGHUP. A signal that is caught here has
	// its default action in those processes.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	// A worker of torchrun, and tmux, lead sessions of their own.
	shell := exec.Command("sh", "-c", `exec env `+agent.ShellVariable+`=one:$$ sh -c '
		trap "" HUP; sleep 60 >/dev/null 2>&1 & trap - HUP; echo $!; setsid sleep 60 >/dev/null 2>&1 & echo $!; exec sleep 60'`)
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	started := bufio.NewScanner(out)
	var others []int
	for range 2 {
		started.Scan() // it has printed that it runs
		pid, err := strconv.Atoi(started.Text())
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, pid)
	}
	for leads := false; !leads; { // setsid has done its work
		session, err := unix.Getsid(others[1])
		leads = err == nil && session == others[1]
	}
	if err := errors.Join(client.KeepShell(t.Context(), "another"), client.EndShell(t.Context(), "another"),
		client.EndShell(t.Context(), "never"),
		client.KeepShell(t.Context(), "one"), client.KeepShell(t.Context(), "one"), client.EndShell(t.Context(), "one")); err != nil {
		t.Fatal(err)
	}
	var exited *exec.ExitError
	if err := shell.Wait(); !errors.As(err, &exited) || exited.Sys().(syscall.WaitStatus).Signal() != syscall.SIGHUP {
		t.Errorf("the shell ended with %v, want SIGHUP", err)
	}
	for i, who := range []string{"a process that ignores SIGHUP", "one with a session of its own"} {
		if err := syscall.Kill(others[i], syscall.SIGKILL); err != nil {
			t.Errorf("%s: %v, want it to run", who, err)
		}
	}
}
