package server

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"testing"
)

// TestKillEndsASupervisor: one that SIGCONT does not wake, as under a debugger, is killed.
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

// firstPause calls f when it is waited for.
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
