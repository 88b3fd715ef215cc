// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/watch"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

func devCommand() *cobra.Command {
	var s session
	s.options.Replace = true
	cmd := &cobra.Command{
		Use:   "dev SCRIPT|-m MODULE [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]",
		Short: "Sync a folder and train, again after every change",
		Long: `Sync a folder to a kept environment and train, and repeat that after every change in the folder and every Enter; mlenv
stops a training that still runs. It forwards port 5678 of this machine to the debugger on node 0, or on the node of
--debug-rank. Ctrl-C ends mlenv and the training.

Exit code 0: ended by Ctrl-C; 1: the environment or the folder cannot be used; 2: wrong usage.`,
		Example: `  mlenv dev train.py
  mlenv dev train.py --dir=../model --debug-rank=0 -- --steps 100`,
		Args: func(cmd *cobra.Command, args []string) error {
			err := errors.Join(s.check(), s.parse(cmd, args))
			s.inFolder()
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.log, s.out = command.Log(cmd), command.Output(cmd)
			return s.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	s.training.addTo(flags)
	flags.StringVar(&s.Dir, "dir", ".", "the folder")
	s.folder.addTo(flags)
	command.AddLogFormat(cmd)
	return cmd
}

type session struct {
	training
	folder
	log *slog.Logger
	out io.Writer
}

// inFolder makes absolute paths of files in the folder relative to it.
func (s *session) inFolder() {
	o := &s.options
	o.Script, o.DeepSpeedConfig = syncrepo.InFolder(s.Dir, o.Script), syncrepo.InFolder(s.Dir, o.DeepSpeedConfig)
}

func (s *session) run(ctx context.Context) error {
	clients, set, detach, err := attach(ctx, &s.Flags, s.log)
	if err != nil {
		return err
	}
	defer detach()
	if err := s.forwardDebugger(ctx, clients, set); err != nil {
		return err
	}
	changes, err := watch.Folder(ctx, s.Dir)
	if err != nil {
		return err
	}
	s.script, s.launcher, s.config = s.options.Script, s.options.Launcher, s.options.DeepSpeedConfig
	s.folder.Environment, s.Namespace = s.training.Environment, clients.Namespace
	s.loop(ctx, func(ctx context.Context) error {
		if err := s.send(ctx, s.log, set); err != nil {
			return err
		}
		return s.train(ctx, s.log, s.out)
	}, changes, enters())
	return nil
}

// loop calls once, and again after every change and Enter, until ctx ends.
func (s *session) loop(ctx context.Context, once func(context.Context) error, changes <-chan watch.Change, enters <-chan struct{}) {
	for ctx.Err() == nil {
		running, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- once(running) }()
		again, over := false, false
		for !again && ctx.Err() == nil {
			select {
			case err := <-done:
				over = true
				s.report(ctx, err)
			case change, ok := <-changes:
				if again = ok; ok {
					s.log.Info(change.String() + ".")
				} else {
					changes = nil
				}
			case _, ok := <-enters:
				if again = ok; !ok {
					enters = nil
				}
			case <-ctx.Done():
			}
		}
		stop()
		if !over {
			<-done // once stops the training
		}
	}
}

func (s *session) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.log.Error(fmt.Sprintf("%s: %s", fail.ReasonOf(err), fail.Details(err)))
		for _, next := range fail.NextsOf(err) {
			s.log.Info("  next: " + next)
		}
	}
	s.log.Info(fmt.Sprintf("Waiting for a change in %s, or Enter, to train again; Ctrl-C ends mlenv.", s.Dir))
}

// enters receives every Enter on the terminal; nil without a terminal.
func enters() <-chan struct{} {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil
	}
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
			lines <- struct{}{}
		}
	}()
	return lines
}

// forwardDebugger forwards the port of the debugger, which listens on the pod's loopback.
func (s *session) forwardDebugger(ctx context.Context, clients *kube.Clients, set nodes.Set) error {
	node, err := s.debuggedNode(ctx, set)
	if err != nil {
		return err
	}
	port, _, err := forward(ctx, s.log, agent.DebugPort, func(ctx context.Context) (net.Conn, error) {
		return env.Of(clients, s.training.Environment).Forward(ctx, node, agent.DebugPort)
	})
	if err != nil {
		return err
	}
	s.log.Info(fmt.Sprintf("The debugger on node %d: localhost:%d.", node, port))
	return nil
}

// debuggedNode returns the node of --debug-rank, or node 0.
func (s *session) debuggedNode(ctx context.Context, set nodes.Set) (int, error) {
	if s.options.DebugRank < 0 {
		return 0, nil
	}
	facts := make([]agent.Facts, len(set))
	err := set.Each(ctx, func(ctx context.Context, client *agent.Client) (err error) {
		facts[client.Node()], err = client.Facts(ctx)
		return err
	})
	if err != nil {
		return 0, err
	}
	// The step train places ranks in the same way.
	spec := agent.JobSpec{Nodes: len(set), RanksPerNode: s.options.RanksPerNode, Order: racks.RankOrder(racks.OfNodes(facts))}
	if spec.RanksPerNode == 0 {
		spec.RanksPerNode = max(1, facts[0].GPUsExpected)
	}
	for node := range set {
		if slices.Contains(spec.Ranks(node), s.options.DebugRank) {
			return node, nil
		}
	}
	return 0, fail.Becausef(fail.InvalidInput, "--debug-rank %d: the training has %d ranks", s.options.DebugRank, len(set)*spec.RanksPerNode)
}
