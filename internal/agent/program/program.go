// SPDX-License-Identifier: Apache-2.0

// Package program is the agent's command line. It is small, because every container of every environment holds it.
package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/sftp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/venv"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

const usage = `mlenv-agent runs the jobs of one node of a training environment.

  mlenv-agent install DIR        copy the program, and py-spy, into a folder (the init container)
  mlenv-agent serve              answer the steps and run jobs (PID 1 of the node)
  mlenv-agent ready              exit 0 when the agent of this container answers
  mlenv-agent launch [RANK...] -- COMMAND
                                 run the command, or run it for each rank, which is a list of its variables such as
                                 "RANK=0 LOCAL_RANK=0", and end all processes that it leaves (the agent does)
  mlenv-agent train SCRIPT       train on all nodes, from a shell on one of them; see mlenv-agent train --help
  mlenv-agent rank -- COMMAND    run one rank and record its end (launch and launchers do)
  mlenv-agent traced -- COMMAND  let the agent read the stacks of a rank, and become it (rank does)
  mlenv-agent exec [COMMAND]     run a command, or a shell, with the environment of jobs;
                                 --shell=ID before it lets the agent end an abandoned shell
  mlenv-agent sftp               serve sftp on standard input and output (the agent does, for ssh)
  mlenv-agent venv DIR FILE      create the virtual environment DIR-PYTHON with the requirements of a file
  mlenv-agent rdma [FLAGS]       print the RDMA devices of this container and their problems;
                                 --check prints a line and sets the exit code, --json prints the facts,
                                 --sys-root=DIR reads another sysfs
  mlenv-agent rdma exec -- COMMAND  set NCCL's variables for the RDMA devices of this container, and become the command
  mlenv-agent files hold         keep a pod for file transfers until SIGTERM or half an hour without one
  mlenv-agent files remove DIR PATH...  delete files and folders
  mlenv-agent files page DIR     print a part of the list that stdin describes
  mlenv-agent files send DIR     print the contents that stdin lists, or the rest of them
  mlenv-agent version            print the versions of the program and of its protocol
`

// Is reports whether a process of this name runs the agent's program: another program may contain it.
func Is(name string) bool {
	base := filepath.Base(name)
	return base == agent.ProgramName || base == agent.SMI
}

// Main runs the command line and returns the exit code: 0 done, 1 failed, 2 wrong usage.
func Main(args, environ []string, stdout, stderr io.Writer) int {
	if filepath.Base(args[0]) == agent.SMI {
		fmt.Fprintln(stderr, "mlenv-agent:", execNvidiaSMI(args[1:], environ))
		return 1
	}
	command, rest := "", []string{}
	if len(args) > 1 {
		command, rest = args[1], args[2:]
	}
	if len(rest) > 0 && rest[0] == "--" && command != "launch" { // which has arguments before it
		rest = rest[1:]
	}
	var err error
	switch {
	case command == "install" && len(rest) == 1:
		err = install(rest[0])
	case command == "serve" && len(rest) == 0:
		err = serve(environ, stdout)
	case command == "ready" && len(rest) == 0:
		err = ready(agent.Socket)
	case command == "launch":
		err = server.Supervise(rest)
	case command == "rank":
		return rank.Main(rest, os.DirFS(facts.OwnCgroup()))
	case command == "traced" && len(rest) > 0:
		err = rank.Traced(rest)
	case command == "exec":
		err = execute(environ, rest)
	case command == "sftp" && len(rest) == 0:
		err = serveSFTP()
	case command == "venv" && len(rest) == 2:
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM) // it ends pip; what pip has left is then removed
		err = venv.Make(rest[0], rest[1], stdout, stderr)
	case command == "files" && len(rest) > 0:
		err = RunFileCommand(rest, os.Stdin, stdout)
	case command == "rdma" && len(rest) > 0 && rest[0] == "exec":
		return executeOverRDMA(rest[1:], environ, stderr)
	case command == "rdma":
		return printRDMA(rest, environ, stdout, stderr)
	case command == "version" && len(rest) == 0:
		fmt.Fprintf(stdout, "mlenv-agent %s, protocol %d\n", version.String(), agent.Protocol)
	case command == "help", command == "--help", command == "-h":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprint(stderr, usage)
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, "mlenv-agent:", err)
		return 1
	}
	return 0
}

// install copies the running program, and py-spy next to it, so that the training container needs nothing of this image.
func install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := place(filepath.Join(dir, "mlenv-agent"), self); err != nil {
		return err
	}
	err = place(filepath.Join(dir, agent.PySpy), filepath.Join(filepath.Dir(self), agent.PySpy))
	if errors.Is(err, fs.ErrNotExist) { // the training image may have it
		return nil
	}
	return err
}

// place copies a program, in place of one that may run: an init container may be restarted.
func place(path, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", content, 0o755); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// shareFiles lets other users of the group change what this process and its children write: root, as which pods of mode rdma may run, and
// the random user of mode tcp share a claim.
func shareFiles() { syscall.Umask(0o002) }

func serve(environ []string, stdout io.Writer) error {
	shareFiles()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go server.ReapOrphans(ctx)
	config, err := server.ReadConfig(version.String(), environ)
	if err != nil {
		return err
	}
	s, err := server.New(config, slog.New(slog.NewTextHandler(stdout, nil)))
	if err != nil {
		return err
	}
	return s.Serve(ctx)
}

func ready(socket string) error {
	name, folder, err := agent.OpenSocket(socket)
	if err != nil {
		return err
	}
	defer folder.Close()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", name)
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dial}}
	response, err := client.Get("http://agent/v1/health")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var health agent.Health
	if err := json.NewDecoder(response.Body).Decode(&health); err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	return nil
}

// serveSFTP serves sftp on standard input and output until the end of the input.
func serveSFTP() error {
	server, err := sftp.NewServer(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
	if err != nil {
		return err
	}
	return server.Serve()
}

func execute(environ, command []string) error {
	if len(command) > 0 {
		if id, ok := strings.CutPrefix(command[0], "--shell="); ok {
			environ, command = append(environ, fmt.Sprintf("%s=%s:%d", agent.ShellVariable, id, os.Getpid())), command[1:]
		}
		if len(command) > 0 && command[0] == "--" {
			command = command[1:]
		}
	}
	config, err := server.ReadConfig(version.String(), environ)
	if err != nil {
		return err
	}
	return shell(config, command)
}

// shell becomes a command, or a shell, which the runtime has started with a umask of its own.
func shell(config server.Config, command []string) error {
	shareFiles()
	if len(command) == 0 {
		command = []string{"sh"}
		if _, err := exec.LookPath("bash"); err == nil {
			command = []string{"bash"}
		}
	}
	if err := os.Chdir(config.ShellFolder()); err != nil {
		return err
	}
	return become(command, config.ShellEnvironment())
}

// become replaces this process by a command, which it looks up in the PATH of environment. It returns only with an error.
func become(command, environment []string) error {
	path, _ := agent.Variable(environment, "PATH")
	if err := os.Setenv("PATH", path); err != nil { // for LookPath
		return err
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", program, syscall.Exec(program, command, environment))
}
