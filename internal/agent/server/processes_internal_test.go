// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestKillEndsASupervisor: kill ends a supervisor that SIGCONT does not wake, for example under a debugger.
func TestKillEndsASupervisor(t *testing.T) {
	t.Parallel() // it takes supervisorTime
	deaf := exec.Command("sleep", "1000")
	if err := deaf.Start(); err != nil {
		t.Fatal(err)
	}
	p := &processes{record: "none"}
	p.supervisor.Store(int64(deaf.Process.Pid))
	p.kill(t.Context())
	_ = deaf.Wait()
	if status, ok := deaf.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL", deaf.ProcessState)
	}
	if p.supervisor.Load() != 0 {
		t.Error("a supervisor that was killed would be killed again")
	}
}

// TestProcessorTime: a process that only asks the kernel uses the processor, too.
func TestProcessorTime(t *testing.T) {
	used := func() (user, system time.Duration) {
		var of syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &of); err != nil {
			t.Fatal(err)
		}
		return time.Duration(of.Utime.Nano()), time.Duration(of.Stime.Nano())
	}
	const enough, ticks = 200 * time.Millisecond, 50 * time.Millisecond
	user, system := used()
	for system < enough {
		_, _ = os.ReadFile("/proc/self/stat")
		user, system = used()
	}
	found, ok := readProcess(os.Getpid())
	if off := (found.cpu - user - system).Abs(); !ok || off > ticks {
		t.Errorf("got %s, %t; want %s in programs and %s in the kernel", found.cpu, ok, user, system)
	}
}

// firstPause calls f when a caller first waits for it.
type firstPause struct {
	context.Context
	once *sync.Once
	f    func()
}

func (p firstPause) Done() <-chan struct{} {
	p.once.Do(p.f)
	return p.Context.Done()
}

// TestTerminateReachesALateLauncher: a job that is stopped before its supervisor has started the launcher ends too.
func TestTerminateReachesALateLauncher(t *testing.T) {
	supervisor := exec.Command("sh", "-c", "read go; sleep 1000; echo $?")
	start, err := supervisor.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := supervisor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := supervisor.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = supervisor.Process.Kill()
		_ = supervisor.Wait()
	})
	p := &processes{record: "none"}
	p.supervisor.Store(int64(supervisor.Process.Pid))
	launched := false
	p.terminate(firstPause{t.Context(), &sync.Once{}, func() {
		launched = true
		fmt.Fprintln(start)
	}})
	if !launched {
		t.Fatal("terminate gave up before there was a launcher")
	}
	if code, err := bufio.NewReader(output).ReadString('\n'); err != nil || code != "143\n" {
		t.Errorf("the launcher ended with %q, %v; want 143, SIGTERM", code, err)
	}
}

// TestStopRanksKillsTheDeaf: a rank that ignores SIGTERM is killed after the grace period. Neither a shim that has ended
// nor a shim without a rank delays that.
func TestStopRanksKillsTheDeaf(t *testing.T) {
	shim := func(rank string) (*exec.Cmd, *bufio.Reader) {
		t.Helper()
		command := exec.Command("sh", "-c", `trap "" TERM; (`+rank+`); echo "rank ended with $?"; sleep 1000 >&-`)
		output, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
		return command, bufio.NewReader(output)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	bare := exec.Command("sleep", "1000")
	if err := bare.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bare.Process.Kill(); _ = bare.Wait() })
	deaf, lines := shim("echo deaf; exec sleep 1000")
	if line, err := lines.ReadString('\n'); line != "deaf\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	const timeUntilRanksAreKilled = 200 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var stopping sync.WaitGroup
	stopping.Go(func() {
		stopRanks(ctx, []int{gone.Process.Pid, bare.Process.Pid, deaf.Process.Pid}, timeUntilRanksAreKilled)
	})
	line, err := lines.ReadString('\n')
	cancel()
	stopping.Wait()
	if want := fmt.Sprintf("rank ended with %d\n", 128+int(syscall.SIGKILL)); line != want {
		t.Errorf("got %q, %v; want %q", line, err, want)
	}
}
