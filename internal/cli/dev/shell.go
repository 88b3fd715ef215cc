package dev

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// attendEvery is how often the agent is told that somebody is at the shell; it is several
// times within agent.ShellPatience.
const attendEvery = agent.ShellPatience / 4

type shell struct {
	place
	node    int
	command []string
}

func shellCommand() *cobra.Command {
	var s shell
	cmd := &cobra.Command{
		Use:   "shell [NODE] [-- COMMAND [ARGUMENT ...]]",
		Short: "Open a shell on a node of a kept environment, or run a command there",
		Long: `Open a shell on a node (default: 0) of an environment that is up, or run a command there, with the environment that
jobs have: NCCL's settings, MASTER_ADDR, HOME and the caches. With a terminal at both ends it has one too, with its size, and
Ctrl-C goes to the shell; without one, what is piped in is its input.

When this machine goes away, or its network, the agent of the node hangs the shell up within a minute, as a terminal that goes
away does; what was started with nohup goes on. Nothing is left by itself.

Exit code: the command's own, or 1 where it could not be run, 2 for wrong usage, 130 after Ctrl-C.`,
		Example: `  mlenv shell
  mlenv shell 1 -- nvidia-smi
  echo 'env | grep NCCL' | mlenv shell`,
		Args: func(cmd *cobra.Command, args []string) error { return s.parse(cmd.ArgsLenAtDash(), args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	s.addTo(cmd.Flags())
	return cmd
}

func (s *shell) parse(dash int, args []string) error {
	if dash < 0 {
		dash = len(args)
	}
	var problems []error
	before, after := args[:dash], args[dash:]
	if len(before) > 1 {
		problems = append(problems, fmt.Errorf("arguments %q: want one node or none; a command goes after --", before))
	}
	if len(before) > 0 {
		node, err := strconv.Atoi(before[0])
		if err != nil || node < 0 {
			problems = append(problems, fmt.Errorf("node %q: want its number in the environment, 0 and up; a command goes after --", before[0]))
		}
		s.node = node
	}
	s.command = after
	return errors.Join(problems...)
}

func (s *shell) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	log := step.TextLog(cmd.ErrOrStderr()) // the output is the command's
	clients, set, detach, err := s.attach(ctx, log)
	if err != nil {
		return err
	}
	defer detach()
	if err := s.has(clients, set, s.node); err != nil {
		return err
	}
	id := strings.ToLower(rand.Text()[:12])
	leave := attend(ctx, log, set[s.node], id)
	defer leave()
	run := kube.Exec{
		Namespace: clients.Namespace, Pod: objects.NamesOf(s.environment).PodName(s.node), Container: objects.TrainContainer,
		Command: slices.Concat([]string{agent.Program, "exec", "--shell=" + id, "--"}, s.command),
		Stdin:   os.Stdin, Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	}
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		restore, sizes, err := takeTerminal(ctx)
		if err != nil {
			return err
		}
		defer restore()
		run.TTY, run.Sizes = true, sizes
	}
	// It ends by its process being hung up, and is cut off only where that takes too long.
	running, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() {
		leave()
		time.AfterFunc(agent.ShellGrace+time.Second, cut)
	})()
	err = run.Run(running, clients)
	if ctx.Err() != nil {
		return &step.Exit{Code: step.Interrupted}
	}
	if exited := (*kube.ExitError)(nil); errors.As(err, &exited) {
		return &step.Exit{Code: exited.Code} // the command has said what there is to say
	}
	return err
}

// attend tells the agent now and then that somebody is at the shell, until leave is called,
// which ends what is left of it.
func attend(ctx context.Context, log *slog.Logger, client *agent.Client, id string) (leave func()) {
	if err := client.KeepShell(ctx, id); err != nil {
		// Whoever looks for what is wrong with an agent must get in.
		log.Warn(fmt.Sprintf("The agent of node %d does not attend this shell, so one whose connection breaks may go on there: %v", client.Node(), err))
		return func() {}
	}
	attending, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		ticker := time.NewTicker(attendEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_ = client.KeepShell(attending, id) // the next one may arrive
			case <-attending.Done():
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		stop()
		const patience = 5 * time.Second
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = client.EndShell(ending, id) // the agent does so by itself a little later
	})
}

// takeTerminal gives every key of the terminal to the far end until restore is called.
func takeTerminal(ctx context.Context) (restore func(), sizes remotecommand.TerminalSizeQueue, err error) {
	in, out := int(os.Stdin.Fd()), int(os.Stdout.Fd())
	before, err := term.MakeRaw(in)
	if err != nil {
		return nil, nil, fmt.Errorf("taking the terminal: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	return func() {
		stop()
		_ = term.Restore(in, before) // there is nothing to be done about it
	}, &terminalSizes{ctx: ctx, size: func() (int, int, error) { return term.GetSize(out) }, resized: windowChanges(ctx)}, nil
}

// terminalSizes tells the terminal's size at first and after every change.
type terminalSizes struct {
	ctx     context.Context //nolint:containedctx // Next has none
	size    func() (width, height int, err error)
	resized <-chan os.Signal
	told    bool
}

// Next implements remotecommand.TerminalSizeQueue.
func (s *terminalSizes) Next() *remotecommand.TerminalSize {
	if s.told {
		select {
		case <-s.resized:
		case <-s.ctx.Done():
			return nil
		}
	}
	s.told = true
	width, height, err := s.size()
	if err != nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}
}
