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
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/watch"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

func devCommand() *cobra.Command {
	var s session
	s.options.Replace = true
	cmd := &cobra.Command{
		Use:   "dev SCRIPT [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]",
		Short: "Sync a folder, train, and again whenever something changes",
		Long: `Put a folder on all nodes of an environment that is up, as mlenv sync does, and train, as mlenv train does; then again
when something in the folder changes, or Enter is pressed, a training that still runs being stopped first. Port 5678 of this machine
leads to the debugger's on node 0, or on the node of --debug-rank. Ctrl-C ends it, and the training.

Exit code 0: it was ended; 1: the environment or the folder cannot be used; 2: wrong usage.`,
		Example: `  mlenv dev train.py
  mlenv dev train.py --dir=../model --debug-rank=0 -- --steps 100`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(append(s.check(), s.parse(cmd, args))...)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.log, s.out = step.Log(cmd), step.Output(cmd)
			return s.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	s.training.addTo(flags)
	flags.StringVar(&s.dir, "dir", ".", "the folder")
	s.folder.addTo(flags)
	step.AddLogFormat(cmd)
	return cmd
}

// session is one of mlenv dev.
type session struct {
	training
	folder
	log *slog.Logger
	// out gets the output of trainings, as train.Deps has it.
	out io.Writer
}

func (s *session) run(ctx context.Context) error {
	clients, set, detach, err := s.attach(ctx, s.log)
	if err != nil {
		return err
	}
	defer detach()
	if err := s.forwardDebugger(ctx, clients, set); err != nil {
		return err
	}
	changes, err := watch.Folder(ctx, s.dir)
	if err != nil {
		return err
	}
	s.loop(ctx, func(ctx context.Context) error {
		if err := s.send(ctx, s.log, set); err != nil {
			return err
		}
		return s.train(ctx, s.log, s.out)
	}, changes, enters())
	return nil
}

// loop does once, and again after every change and Enter, until ctx ends.
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
				s.tell(ctx, err)
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
			<-done // it stops the training
		}
	}
}

// tell says how it ended and what comes next.
func (s *session) tell(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.log.Error(fmt.Sprintf("%s: %s", fail.ReasonOf(err), fail.Details(err)), "reason", fail.ReasonOf(err), "error", err)
		if next := fail.NextOf(err); next != "" {
			s.log.Info("  next: " + next)
		}
	}
	s.log.Info(fmt.Sprintf("Waiting for a change in %s, or Enter, to do it again; Ctrl-C ends it.", s.dir), "folder", s.dir)
}

// enters tells of every Enter on the terminal; nil where there is none.
func enters() <-chan struct{} {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil
	}
	return linesOf(os.Stdin)
}

func linesOf(in io.Reader) <-chan struct{} {
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- struct{}{}
		}
	}()
	return lines
}

// forwardDebugger makes the port of the debugger reachable, which is on the pod's loopback.
func (s *session) forwardDebugger(ctx context.Context, clients *kube.Clients, set nodes.Set) error {
	node, err := s.debuggedNode(ctx, set)
	if err != nil {
		return err
	}
	pod := objects.NamesOf(s.environment).PodName(node)
	port, _, err := forward(ctx, s.log, agent.DebugPort, func(ctx context.Context) (net.Conn, error) {
		return kube.DialPod(ctx, clients, clients.Namespace, pod, agent.DebugPort)
	})
	if err != nil {
		return err
	}
	s.log.Info(fmt.Sprintf("A debugger on node %d is reached at localhost:%d.", node, port), "node", node, "port", port)
	return nil
}

// debuggedNode is the node of the rank that waits for a debugger, or node 0.
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
	// As train will have it.
	spec := agent.JobSpec{Nodes: len(set), RanksPerNode: s.options.RanksPerNode, Order: network.Order(network.SettingsOf(facts).Racks)}
	if spec.RanksPerNode == 0 {
		spec.RanksPerNode = max(1, facts[0].GPUsExpected)
	}
	for node := range set {
		if slices.Contains(spec.Ranks(node), s.options.DebugRank) {
			return node, nil
		}
	}
	return 0, fail.Becausef(fail.InvalidInput, "--debug-rank %d: there are %d ranks", s.options.DebugRank, len(set)*spec.RanksPerNode)
}
