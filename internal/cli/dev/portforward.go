// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
)

type portForward struct {
	envflags.Flags
	node  int
	ports []int
}

func portForwardCommand() *cobra.Command {
	var p portForward
	cmd := &cobra.Command{
		Use:   "port-forward [PORT ...]",
		Short: "Forward ports of a node to this machine",
		Long: fmt.Sprintf(
			`Forward ports of a node of a kept environment to the same ports of this machine, until Ctrl-C; without a port the
debugger's, %d. They also reach programs that listen on the node's loopback only. A port that is taken on this machine is
replaced by another one, which mlenv prints. mlenv open forwards VS Code, Jupyter and TensorBoard.

Exit code 0: Ctrl-C ended it; 1: the ports were not forwarded; 2: wrong usage.`, agent.DebugPort),
		Example: `  mlenv port-forward
  mlenv port-forward 8000 9000 --node=1`,
		Args: func(_ *cobra.Command, args []string) error { return p.parse(args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context(), command.Log(cmd)) },
	}
	flags := cmd.Flags()
	p.AddTo(flags, envflags.OnlyNamespace)
	flags.IntVar(&p.node, "node", 0, "number of the node in the environment")
	command.AddLogFormat(cmd)
	return cmd
}

func (p *portForward) parse(args []string) error {
	err := command.Want(p.node >= 0, "--node %d: want its number in the environment, 0 and up", p.node)
	for _, arg := range args {
		port, invalid := strconv.ParseUint(arg, 10, 16)
		err = errors.Join(err, command.Want(invalid == nil && port > 0, "port %q: want a number, 1 to 65535", arg))
		p.ports = append(p.ports, int(port))
	}
	if len(p.ports) == 0 {
		p.ports = []int{agent.DebugPort}
	}
	return err
}

func (p *portForward) run(ctx context.Context, log *slog.Logger) error {
	clients, set, detach, err := attach(ctx, &p.Flags, log)
	if err != nil {
		return err
	}
	defer detach()
	if p.node >= len(set) {
		return noNode(clients, p.Environment, p.node, len(set))
	}
	ctx, stop := context.WithCancel(ctx)
	e := env.Of(clients, p.Environment)
	for _, port := range p.ports {
		local, wait, err := forward(ctx, log, port, func(ctx context.Context) (net.Conn, error) {
			return e.Forward(ctx, p.node, port)
		})
		if err != nil {
			stop()
			return err
		}
		defer wait()
		log.Info(fmt.Sprintf("localhost:%d leads to port %d of node %d.", local, port, p.node))
	}
	defer stop()
	log.Info("The ports are forwarded until Ctrl-C.")
	<-ctx.Done()
	return nil
}
