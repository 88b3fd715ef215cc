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
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

func devCommand() *cobra.Command {
	cmd := ofStep(train.ForPeople())
	cmd.Use = "dev SCRIPT [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]"
	cmd.Short = "Sync a folder, train, and again whenever something changes"
	cmd.Long = `Put a folder on all nodes of an environment that is up, as mlenv sync does, and train, as mlenv train does; then again
when something in the folder changes, or Enter is pressed, a training that still runs being stopped first. Port 5678 of this machine
leads to the debugger's on node 0, or on the node of --debug-rank. Ctrl-C ends it, and the training.

Exit code 0: it was ended; 1: the environment or the folder cannot be used; 2: wrong usage.`
	cmd.Example = `  mlenv dev train.py
  mlenv dev train.py --dir=../model --debug-rank=0 -- --steps 100`
	flags := cmd.Flags()
	setDefault(flags, "replace", "true", flags.Lookup("replace").Usage)
	var s session
	flags.StringVar(&s.dir, "dir", ".", "the folder")
	s.folder.addTo(flags)
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		return errors.Join(append(s.check(), check(cmd, args))...)
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.place = place{
			kube:        kube.Flags{Namespace: value(flags, "namespace"), Kubeconfig: value(flags, "kubeconfig"), Context: value(flags, "context")},
			environment: value(flags, nameFlag), cluster: value(flags, clusterFileFlag),
		}
		var err error
		if s.debugRank, err = flags.GetInt("debug-rank"); err != nil {
			return err
		}
		if s.ranksPerNode, err = flags.GetInt("ranks-per-node"); err != nil {
			return err
		}
		s.log = step.Log(cmd)
		ctx := cmd.Context()
		s.train = func(ctx context.Context) error {
			cmd.SetContext(ctx)
			return run(cmd, args)
		}
		return s.run(ctx)
	}
	return cmd
}

// session is one of mlenv dev.
type session struct {
	place
	folder
	debugRank, ranksPerNode int
	log                     *slog.Logger
	train                   func(context.Context) error
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
		return s.train(ctx)
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
		s.log.Error(fmt.Sprintf("%s: %v", fail.ReasonOf(err), err))
		if next := fail.NextOf(err); next != "" {
			s.log.Info("  next: " + next)
		}
	}
	s.log.Info(fmt.Sprintf("Waiting for a change in %s, or Enter, to do it again; Ctrl-C ends it.", s.dir))
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
	s.log.Info(fmt.Sprintf("A debugger on node %d is reached at localhost:%d.", node, port))
	return nil
}

// debuggedNode is the node of the rank that waits for a debugger, or node 0.
func (s *session) debuggedNode(ctx context.Context, set nodes.Set) (int, error) {
	if s.debugRank < 0 {
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
	spec := agent.JobSpec{Nodes: len(set), RanksPerNode: s.ranksPerNode, Order: network.Order(network.SettingsOf(facts).Racks)}
	if spec.RanksPerNode == 0 {
		spec.RanksPerNode = max(1, facts[0].GPUsExpected)
	}
	for node := range set {
		if slices.Contains(spec.Ranks(node), s.debugRank) {
			return node, nil
		}
	}
	return 0, fail.Becausef(fail.InvalidInput, "--debug-rank %d: there are %d ranks", s.debugRank, len(set)*spec.RanksPerNode)
}
