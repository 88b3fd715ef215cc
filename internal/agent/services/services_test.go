// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// TestMain lets the test's own binary be a program that serves HTTP at an address.
func TestMain(m *testing.M) {
	if address := os.Getenv("SERVE_ON"); address != "" {
		fmt.Println(http.ListenAndServe(address, http.HandlerFunc(echo)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// desk is a node whose image has the programs that a test installs. Each program writes to a pipe, from which the test
// reads its starts.
type desk struct {
	*testing.T
	options Options
	manager *Manager
	heard   *bufio.Reader
	pipe    string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	dir := t.TempDir()
	d := &desk{T: t, pipe: filepath.Join(dir, "pipe")}
	address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	d.options = Options{
		Dir: filepath.Join(dir, "secret"), Workspace: filepath.Join(dir, "workspace"), Logs: filepath.Join(dir, "logs"),
		Run:    filepath.Join(dir, "run"),
		Public: address, Loopback: address,
		Environ: func() map[string]string {
			return map[string]string{"PATH": filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "NCCL_DEBUG": "INFO", "PIPE": d.pipe}
		},
	}
	for _, folder := range []string{d.options.Dir, d.options.Workspace, filepath.Join(dir, "bin")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(d.pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	// The test opens both ends, so opening the pipe blocks neither the test nor a program.
	pipe, err := os.OpenFile(d.pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	d.heard = bufio.NewReader(pipe)
	return d
}

// program installs a shell script in the image.
func (d *desk) program(name, script string) {
	d.Helper()
	path := filepath.Join(filepath.Dir(d.pipe), "bin", name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		d.Fatal(err)
	}
}

// secret replaces the content of the mounted Secret, as the kubelet does.
func (d *desk) secret(content map[string]string) {
	d.Helper()
	data, err := os.MkdirTemp(d.options.Dir, "..data-*")
	if err != nil {
		d.Fatal(err)
	}
	for name, value := range content {
		if err := os.WriteFile(filepath.Join(data, name), []byte(value), 0o600); err != nil {
			d.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(d.options.Dir, name)); err != nil && !os.IsExist(err) {
			d.Fatal(err)
		}
	}
	link := filepath.Join(d.options.Dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(data), link); err != nil {
		d.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(d.options.Dir, "..data")); err != nil {
		d.Fatal(err)
	}
}

// run runs the services. The returned function stops them; otherwise the end of the test does.
func (d *desk) run() (end func()) {
	d.Helper()
	d.manager = New(d.options, slog.New(slog.DiscardHandler))
	d.manager.pauses = pauses{first: time.Millisecond, most: time.Millisecond}
	ctx, cancel := context.WithCancel(d.Context())
	done := make(chan error, 1)
	go func() { done <- d.manager.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			d.Error(err)
		}
	})
	d.Cleanup(end)
	return end
}

func (d *desk) hear(want string) {
	d.Helper()
	line, err := d.heard.ReadString('\n')
	if err != nil || line != want+"\n" {
		d.Fatalf("heard %q, %v; want %q", line, err, want)
	}
}

func (d *desk) status() []agent.ServiceStatus { return d.manager.Status() }

// until polls the status until wanted accepts it, because no event reports that a program listens.
func (d *desk) until(wanted func([]agent.ServiceStatus) bool) []agent.ServiceStatus {
	d.Helper()
	for ticks := time.Tick(10 * time.Millisecond); ; {
		status := d.status()
		if wanted(status) {
			return status
		}
		select {
		case <-ticks:
		case <-d.Context().Done():
			d.Fatalf("status %+v", status)
		}
	}
}

func TestServicesGetTheEnvironmentAndTheirPassword(t *testing.T) {
	d := newDesk(t)
	d.program("code-server",
		`echo $$ > "$PIPE"; echo "$* $PASSWORD $NCCL_DEBUG $SHELL" > "$PIPE"; echo "the password is $PASSWORD"; exec sleep 1000`)
	d.program("jupyter-lab",
		`echo "$(cat "$JUPYTER_TOKEN_FILE") $NCCL_DEBUG ${PASSWORD-none} $JUPYTER_RUNTIME_DIR" > "$PIPE"; echo "$*" > "$PIPE"; exec sleep 1000`)
	d.secret(map[string]string{"services": "code-server", "code-server-password": "p1", "jupyter-token": "t1"})
	end := d.run()
	public := d.options.Public
	pid, err := d.heard.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	d.hear(fmt.Sprintf("--bind-addr=%s:8080 --auth=password --disable-telemetry --disable-update-check --disable-workspace-trust %s p1 "+
		"INFO %s", public, d.options.Workspace, d.options.find("bash")))
	// Requesting jupyter does not restart code-server.
	d.secret(map[string]string{"services": "code-server,jupyter", "code-server-password": "p1", "jupyter-token": "t1"})
	d.hear("t1 INFO none " + filepath.Join(d.options.Run, "jupyter"))
	arguments, err := d.heard.ReadString('\n')
	if err != nil || strings.Contains(arguments, "t1") || !strings.Contains(arguments, "--ServerApp.ip="+public+" --ServerApp.port=18888") {
		t.Errorf("jupyter's arguments are %q, %v", arguments, err)
	}
	after := d.until(func(s []agent.ServiceStatus) bool { return len(s) == 2 && s[1].State == agent.ServiceRunning })
	if fmt.Sprintln(after[0].PID) != pid || after[0].State != agent.ServiceRunning {
		t.Errorf("status %+v; want code-server to keep running as process %s", after, pid)
	}
	// A new password restarts the service.
	d.secret(map[string]string{"services": "code-server", "code-server-password": "p2"})
	if _, err := d.heard.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if line, err := d.heard.ReadString('\n'); !strings.Contains(line, " p2 INFO ") {
		t.Errorf("read %q, %v; want the new password", line, err)
	}
	end()
	if left := d.status(); len(left) != 0 {
		t.Errorf("after the end: %+v", left)
	}
	for _, status := range after {
		if err := syscall.Kill(status.PID, 0); err != syscall.ESRCH {
			t.Errorf("%s: process %d still runs after the end: %v", status.Name, status.PID, err)
		}
	}
	log, err := os.ReadFile(filepath.Join(d.options.Logs, "code-server.log"))
	if err != nil || strings.Contains(string(log), "p1") || !strings.Contains(string(log), "the password is ...\n") {
		t.Errorf("log %q, %v; want it without passwords", log, err)
	}
}

func TestServicesAreStartedAgain(t *testing.T) {
	d := newDesk(t)
	// The processes that a service started end with it.
	d.program("code-server", `sleep 1000 & echo "$!" > "$PIPE"; echo no such folder >&2; exit 3`)
	d.secret(map[string]string{"services": "code-server", "code-server-password": "p"})
	d.run()
	var left []string
	for range 3 {
		pid, err := d.heard.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, strings.TrimSpace(pid))
	}
	got := d.status()[0]
	if got.Restarts < 2 || got.Problem != "it ended with exit status 3: no such folder" {
		t.Errorf("status %+v, want 2 restarts and how it ended", got)
	}
	for _, pid := range left[:2] {
		if state, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(state), ") Z ") {
			t.Errorf("process %s, which the service started, still runs: %s", pid, state)
		}
	}
}

func TestServicesThatCannotRun(t *testing.T) {
	d := newDesk(t)
	d.options.Environ = func() map[string]string {
		return map[string]string{"PATH": filepath.Join(filepath.Dir(d.pipe), "bin"), "PIPE": d.pipe}
	}
	d.program("jupyter-lab", `echo started > "$PIPE"`)
	d.manager = New(d.options, slog.New(slog.DiscardHandler))
	d.secret(map[string]string{"services": "code-server,jupyter,emacs", "code-server-password": "p", "jupyter-token": ""})
	want, err := d.manager.read()
	if err != nil {
		t.Fatal(err)
	}
	d.manager.adopt(t.Context(), want)
	expected := []agent.ServiceStatus{
		{Name: "code-server", Port: 8080, State: agent.ServiceAbsent, Problem: "the image has no code-server"},
		{Name: "jupyter", Port: 8888, State: agent.ServiceRefused, Problem: "it has no token in the environment's Secret"},
	}
	if diff := cmp.Diff(expected, d.status(), cmpopts.IgnoreFields(agent.ServiceStatus{}, "Log")); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	d.manager.adopt(t.Context(), nil)
}

func TestServiceBehindItsGate(t *testing.T) {
	d := newDesk(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d.program("tensorboard", fmt.Sprintf(`echo "$*" > "$PIPE"; SERVE_ON=%s:16006 exec '%s'`, d.options.Loopback, self))
	d.secret(map[string]string{"services": "tensorboard", "tensorboard-token": token})
	d.run()
	d.hear(fmt.Sprintf("--logdir=%s/tensorboard --host=%s --port=16006", d.options.Workspace, d.options.Loopback))
	running := d.until(func(s []agent.ServiceStatus) bool { return s[0].Answers })
	front := "http://" + net.JoinHostPort(d.options.Public, "6006")
	if response := visit(t, browser(t), front+"/"); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %s", response.Status)
	}
	if got := visit(t, browser(t), front+"/runs?token="+token); !strings.HasPrefix(got.body, "GET /runs ") {
		t.Errorf("with the token: %q", got.body)
	}
	// The gate listens while the service restarts.
	d.program("tensorboard", "exit 1")
	if err := syscall.Kill(running[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.until(func(s []agent.ServiceStatus) bool { return s[0].State != agent.ServiceRunning })
	if response := visit(t, browser(t), front+"/runs?token="+token); response.StatusCode != http.StatusBadGateway {
		t.Errorf("while it does not run: %s", response.Status)
	}
}

func TestNodeWithoutServices(t *testing.T) {
	d := newDesk(t)
	d.options.Dir = filepath.Join(d.options.Dir, "none")
	d.run()()
	if got := d.status(); len(got) != 0 {
		t.Errorf("status %+v", got)
	}
}

func TestPauses(t *testing.T) {
	p := pauses{first: time.Second, most: 10 * time.Second, steady: time.Minute}
	var got []time.Duration
	pause := time.Duration(0)
	for _, ran := range []time.Duration{0, 0, 0, 0, 0, 0, time.Hour, 0} {
		pause = p.next(pause, ran)
		got = append(got, pause/time.Second)
	}
	if diff := cmp.Diff([]time.Duration{1, 2, 4, 8, 10, 10, 1, 2}, got); diff != "" {
		t.Errorf("pauses in seconds (-want +got):\n%s", diff)
	}
}

func TestOutputIsBounded(t *testing.T) {
	o := &output{path: filepath.Join(t.TempDir(), "log"), secret: "secret"}
	if err := o.open(); err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for range 3 * maxLog / 1000 {
		for _, piece := range []string{strings.Repeat("x", 900), "a sec", "ret" + strings.Repeat("y", 90) + "\n"} {
			if _, err := o.Write([]byte(piece)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var size int64
	for _, path := range []string{o.path, o.path + ".old"} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		size += int64(len(content))
		if strings.Contains(string(content), "secret") || !strings.Contains(string(content), "a ...") {
			t.Errorf("%s has the secret in it", path)
		}
	}
	if size > 2*maxLog+10000 || size < maxLog {
		t.Errorf("%d bytes are kept, want at most %d", size, 2*maxLog)
	}
}
