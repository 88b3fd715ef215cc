// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// attendEvery is the interval of the messages that keep the shell open.
const attendEvery = agent.ShellPatience / 4

type shell struct {
	envflags.Flags
	node    int
	command []string
}

func shellCommand() *cobra.Command {
	var s shell
	cmd := &cobra.Command{
		Use:   "shell [NODE] [-- COMMAND [ARGUMENT ...]]",
		Short: "Open a shell on a node of a kept environment, or run a command there",
		Long: `Open a shell on a node (default: 0) of a kept environment, or run a command there, with the environment of jobs: NCCL's
settings, MASTER_ADDR, HOME and the caches. It starts in the repository that was synced last. On a terminal the shell has
a terminal of the same size and receives Ctrl-C.

If the connection breaks, the node's agent hangs up the shell within a minute; programs that were started with nohup
continue.

Exit code: the command's own; 1: the command did not run; 2: wrong usage; 130: Ctrl-C.`,
		Example: `  mlenv shell
  mlenv shell 1 -- nvidia-smi
  echo 'env | grep NCCL' | mlenv shell`,
		Args: func(cmd *cobra.Command, args []string) error { return s.parse(cmd.ArgsLenAtDash(), args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	s.AddTo(cmd.Flags(), envflags.OnlyNamespace)
	return cmd
}

func (s *shell) parse(dash int, args []string) error {
	if dash < 0 {
		dash = len(args)
	}
	before := args[:dash]
	s.command = args[dash:]
	err := command.Want(len(before) <= 1, "arguments %q: want one node or none; a command goes after --", before)
	if len(before) > 0 {
		node, invalid := strconv.Atoi(before[0])
		err = errors.Join(err, command.Want(invalid == nil && node >= 0, "node %q: want its number in the environment, 0 and up; a command "+
			"goes after --", before[0]))
		s.node = node
	}
	return err
}

func (s *shell) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	log := command.TextLog(cmd.ErrOrStderr()) // the output is the command's
	clients, set, detach, err := attach(ctx, &s.Flags, log)
	if err != nil {
		return err
	}
	defer detach()
	if s.node >= len(set) {
		return noNode(clients, s.Environment, s.node, len(set))
	}
	id := strings.ToLower(rand.Text()[:12])
	leave := attend(ctx, log, set[s.node], id)
	defer leave()
	run := kube.Exec{
		Namespace: clients.Namespace, Pod: env.Of(clients, s.Environment).PodName(s.node), Container: objects.TrainContainer,
		Command: slices.Concat([]string{agent.Program, "exec", "--shell=" + id, "--"}, s.command),
		Stdin:   os.Stdin, Stdout: command.Unfiltered(cmd.OutOrStdout()), Stderr: command.Unfiltered(cmd.ErrOrStderr()),
	}
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		restore, sizes, err := takeTerminal(ctx)
		if err != nil {
			return err
		}
		defer restore()
		run.TTY, run.Sizes = true, sizes
	}
	// After Ctrl-C the agent hangs up the process; the connection is cut only if that takes too long.
	running, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() {
		leave()
		time.AfterFunc(agent.ShellGrace+time.Second, cut)
	})()
	err = run.Run(running, clients)
	if ctx.Err() != nil {
		return &command.Exit{Code: command.Interrupted}
	}
	if exited := (*kube.ExitError)(nil); errors.As(err, &exited) {
		return &command.Exit{Code: exited.Code} // the command has printed its own errors
	}
	return err
}

// attend keeps the shell open until leave, which ends it.
func attend(ctx context.Context, log *slog.Logger, client *agent.Client, id string) (leave func()) {
	if err := client.KeepShell(ctx, id); err != nil {
		// A shell must work even if the agent does not.
		log.Warn(fmt.Sprintf("The agent of node %d does not watch this shell. If the connection breaks, the shell may stay: %v", client.Node(),
			err))
		return func() {}
	}
	attending, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		ticker := time.NewTicker(attendEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_ = client.KeepShell(attending, id) // the next message may arrive
			case <-attending.Done():
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		stop()
		const patience = 5 * time.Second // for the last request after Ctrl-C
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = client.EndShell(ending, id) // the agent ends it a little later anyway
	})
}

// takeTerminal sends every key of the terminal to the node until restore is called.
func takeTerminal(ctx context.Context) (restore func(), sizes remotecommand.TerminalSizeQueue, err error) {
	in := int(os.Stdin.Fd())
	before, err := term.MakeRaw(in)
	if err != nil {
		return nil, nil, fmt.Errorf("taking the terminal: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	resized := make(chan os.Signal, 1)
	resized <- syscall.SIGWINCH // for the size at first
	signal.Notify(resized, syscall.SIGWINCH)
	return func() {
		signal.Stop(resized)
		stop()
		_ = term.Restore(in, before) // nothing else can be done
	}, &terminalSizes{ctx, resized}, nil
}

// terminalSizes returns the terminal's size at first and after every change.
type terminalSizes struct {
	ctx     context.Context //nolint:containedctx // Next has none
	resized <-chan os.Signal
}

// Next implements remotecommand.TerminalSizeQueue.
func (s *terminalSizes) Next() *remotecommand.TerminalSize {
	select {
	case <-s.resized:
	case <-s.ctx.Done():
		return nil
	}
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}
}
