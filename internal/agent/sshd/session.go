// SPDX-License-Identifier: Apache-2.0

package sshd

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

const (
	// mostVariables is how many variables a client may set.
	mostVariables = 64
	// drainTime is how long a terminal's output is waited for after its shell has ended: other processes may keep it open for ever.
	drainTime = time.Second
	// mostLeft is how many bytes of it are passed on at most. The kernel keeps fewer.
	mostLeft = 1 << 20
)

// session is one program of a client: a shell, a command or sftp.
type session struct {
	*Server
	channel   ssh.Channel
	variables map[string]string
	terminal  *terminal // nil without one
	input     *os.File
	outputs   []output

	mu      sync.Mutex
	process *exec.Cmd
	ended   bool
}

// output is the reading end of a pipe or terminal, and the writer that gets what is read.
type output struct {
	from *os.File
	to   io.Writer
}

func (s *Server) session(offered ssh.NewChannel) {
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	x := &session{Server: s, channel: channel, variables: map[string]string{}}
	defer x.end()
	for request := range requests { // until the client or the program ends the channel, or the connection is lost
		if arguments, ok := x.asked(request); ok {
			x.launch(request, arguments)
			continue
		}
		_ = request.Reply(x.answer(request), nil) // the client is gone
	}
}

// asked returns the command line for which a request asks; ok is false for any other request. An empty one is the shell.
func (x *session) asked(request *ssh.Request) (arguments []string, ok bool) {
	var given struct{ Text string }
	valid := request.Type == "shell" || ssh.Unmarshal(request.Payload, &given) == nil
	switch {
	case !valid || x.process != nil:
		return nil, false
	case request.Type == "shell":
		return nil, true
	case request.Type == "exec":
		return []string{"-c", given.Text}, true
	case request.Type == "subsystem" && given.Text == "sftp":
		return []string{x.options.Program, "sftp"}, true
	}
	return nil, false
}

// answer reports whether a request that starts nothing was fulfilled.
func (x *session) answer(request *ssh.Request) bool {
	switch request.Type {
	case "env":
		var given struct{ Name, Value string }
		if ssh.Unmarshal(request.Payload, &given) != nil || len(x.variables) >= mostVariables {
			return false
		}
		if given.Name != "LANG" && given.Name != "TERM" && !strings.HasPrefix(given.Name, "LC_") {
			return false
		}
		x.variables[given.Name] = given.Value
		return true
	case "pty-req":
		return x.terminal == nil && x.process == nil && x.takeTerminal(request.Payload)
	case "window-change":
		var size windowSize
		return ssh.Unmarshal(request.Payload, &size) == nil && x.terminal != nil && x.terminal.resize(size) == nil
	case "signal":
		var given struct{ Name string }
		return ssh.Unmarshal(request.Payload, &given) == nil && x.signal(unix.SignalNum("SIG"+given.Name))
	}
	return false
}

// takeTerminal opens a terminal for the program.
func (x *session) takeTerminal(payload []byte) bool {
	var given struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if ssh.Unmarshal(payload, &given) != nil {
		return false
	}
	opened, err := openTerminal(windowSize{given.Columns, given.Rows, given.Width, given.Height})
	if err != nil {
		x.options.Log.Warn("A terminal for ssh is missing.", "error", err)
		return false
	}
	x.terminal, x.variables["TERM"] = opened, cmp.Or(given.Term, "dumb")
	return true
}

// launch starts the program, and answers the request before its first output.
func (x *session) launch(request *ssh.Request, arguments []string) {
	err := x.start(arguments)
	_ = request.Reply(true, nil) // the client is gone
	if err != nil {
		const notStarted = 127
		fmt.Fprintf(x.channel.Stderr(), "mlenv: %v\r\n", err)
		x.report("exit-status", struct{ Code uint32 }{notStarted})
		return
	}
	go x.follow()
}

func (x *session) start(arguments []string) error {
	dir, variables := x.options.Shell()
	shell, err := agent.FindProgram("bash", variables["PATH"])
	if err != nil {
		shell = "/bin/sh"
	}
	program := shell
	if len(arguments) > 0 && arguments[0] == x.options.Program {
		program, arguments = arguments[0], arguments[1:]
	}
	process := exec.Command(program, arguments...)
	process.Dir = dir
	// The user ID has no entry in /etc/passwd.
	maps.Copy(variables, map[string]string{"SHELL": shell, "PWD": dir})
	maps.Copy(variables, x.variables)
	process.Env = agent.Environ(variables)
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: x.terminal != nil}
	theirs, err := x.connect(process)
	if err == nil {
		err = process.Start()
	}
	for _, file := range theirs {
		file.Close()
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", program, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.process = process
	return nil
}

// connect gives the process the terminal, or else pipes, so that its output and its errors stay apart. It returns the ends that are
// the process's alone.
func (x *session) connect(process *exec.Cmd) (theirs []*os.File, err error) {
	if t := x.terminal; t != nil {
		process.Stdin, process.Stdout, process.Stderr = t.device, t.device, t.device
		x.input, x.outputs = t.master, []output{{t.master, x.channel}}
		return []*os.File{t.device}, nil
	}
	in, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	process.Stdin, x.input, theirs = in, ours, []*os.File{in}
	for _, end := range []struct {
		of *io.Writer
		to io.Writer
	}{{&process.Stdout, x.channel}, {&process.Stderr, x.channel.Stderr()}} {
		from, out, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		*end.of, theirs, x.outputs = out, append(theirs, out), append(x.outputs, output{from, end.to})
	}
	return theirs, nil
}

// follow passes everything on until the program has ended, and reports how it ended. Without a terminal it waits for the processes
// that still hold the output, as OpenSSH does.
func (x *session) follow() {
	go func() {
		_, _ = io.Copy(x.input, x.channel)
		if x.terminal == nil {
			x.input.Close() // the end of the client's input
		}
	}()
	var copies sync.WaitGroup
	for _, o := range x.outputs {
		copies.Go(func() {
			_, _ = io.Copy(o.to, o.from) // a terminal ends with an error
			if x.terminal != nil {
				x.drain()
				return
			}
			o.from.Close() // a program whose reader is gone gets SIGPIPE
		})
	}
	_ = x.process.Wait() // its state says the same
	x.mu.Lock()
	x.ended = true
	x.mu.Unlock()
	if x.terminal != nil {
		_ = x.terminal.master.SetReadDeadline(time.Now()) // drain reads the rest
	}
	copies.Wait()
	status := x.process.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		x.report("exit-signal", struct {
			Name          string
			Core          bool
			Message, Lang string
		}{Name: strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG"), Core: status.CoreDump()})
		return
	}
	x.report("exit-status", struct{ Code uint32 }{uint32(status.ExitStatus())})
}

// drain passes on what an ended program has left in its terminal, however slowly the client reads. A program in the background may still
// print: only the time that is waited for output is bounded.
func (x *session) drain() {
	buffer := make([]byte, 32<<10)
	for waited, left := time.Duration(0), mostLeft; waited < drainTime && left > 0; {
		began := time.Now()
		_ = x.terminal.master.SetReadDeadline(began.Add(drainTime - waited)) // it has failed if the terminal is closed
		n, err := x.terminal.master.Read(buffer)
		waited, left = waited+time.Since(began), left-n
		if _, gone := x.channel.Write(buffer[:n]); err != nil || gone != nil {
			return
		}
	}
}

// report ends the channel with how the program ended. Errors mean that the client is gone.
func (x *session) report(request string, payload any) {
	_ = x.channel.CloseWrite()
	_, _ = x.channel.SendRequest(request, false, ssh.Marshal(payload))
	x.channel.Close()
}

// signal sends a signal to the program and its children, unless it has ended.
func (x *session) signal(s syscall.Signal) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return s != 0 && x.process != nil && !x.ended && syscall.Kill(-x.process.Process.Pid, s) == nil
}

// end hangs up a program that still runs when its channel is over, as the loss of a terminal does.
func (x *session) end() {
	x.mu.Lock()
	running := x.process != nil && !x.ended
	x.mu.Unlock()
	if running {
		x.options.HangUp(x.process.Process.Pid)
	}
	if x.terminal != nil {
		x.terminal.close()
	}
	if x.input != nil {
		x.input.Close()
	}
	for _, o := range x.outputs {
		o.from.Close()
	}
	x.channel.Close()
}
