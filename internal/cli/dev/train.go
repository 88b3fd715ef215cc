// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// training runs the step train in a kept environment. Only one training runs there at a time.
type training struct {
	envflags.Flags
	options train.Options
	module  envflags.Module
}

func trainCommand() *cobra.Command {
	var t training
	cmd := &cobra.Command{
		Use:   "train SCRIPT|-m MODULE [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]",
		Short: "Train on all nodes of a kept environment",
		Long: `Launch a script on all nodes of a kept environment and follow it to its end, with the code of the step train. The script
runs in the tree of the last mlenv sync; a path that begins with / is a path on the nodes.

Arguments before -- are variables of the ranks, those after it are the script's own. Ctrl-C stops the training. --replace
first stops a training that still runs, for example because the connection of its mlenv broke. mlenv runs lists the
training as by-hand-..., and status, logs --rank, receipt, fetch and top take that name.

Exit code 0: every rank exited with 0; 1: the training failed; 2: wrong usage.`,
		Example: `  mlenv train train.py
  mlenv train train.py NCCL_DEBUG=WARN --launcher=torchrun -- --steps 500 --lr 3e-4
  mlenv train -m model.train
  mlenv train train.py --debug-rank=0   # it waits for a debugger on port 5678`,
		Args: t.parse,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := command.UntilHangup(cmd.Context())
			defer stop()
			return t.train(ctx, command.Log(cmd), command.Output(cmd))
		},
	}
	t.addTo(cmd.Flags())
	command.AddLogFormat(cmd)
	return cmd
}

func (t *training) addTo(flags *pflag.FlagSet) {
	t.AddTo(flags, envflags.OnlyNamespace)
	t.options.AddFlags(flags)
	t.options.AddStopGrace(flags, 0)
	t.module.AddTo(flags)
	flags.BoolVar(&t.options.Replace, "replace", t.options.Replace, "first stop a user's training that still runs on these nodes")
}

func (t *training) parse(cmd *cobra.Command, args []string) error {
	o := &t.options
	o.Env, o.Args = train.AtDash(cmd, args)
	if o.Script = t.module.Script(); o.Script != "" {
		return o.Check()
	}
	if len(o.Env) == 0 || strings.Contains(o.Env[0], "=") {
		return errors.Join(errors.New("an argument is missing: want the training script, or -m MODULE"), o.Check())
	}
	o.Script, o.Env = o.Env[0], o.Env[1:]
	return o.Check()
}

func (t *training) train(ctx context.Context, log *slog.Logger, out io.Writer) error {
	clients, err := t.Connect(ctx, log)
	if err != nil {
		return err
	}
	options := t.options
	options.Name, options.Exclusive = t.Environment, true
	options.Job = "by-hand-" + strings.ToLower(rand.Text()[:6])
	start := receipt.Start{Run: options.Job, Namespace: clients.Namespace, RunUID: options.Job, Environment: t.Environment,
		User: kube.WhoAsks(ctx, clients.Kube), Started: clients.Now().UTC(), Kept: true}
	journal := start.Writer(clients, log, "train")
	_, err = train.Run(ctx, train.Deps{Clients: clients, Log: log, Out: out, Journal: journal}, options)
	if journal.Written() {
		if notKept := keepReceipt(ctx, clients, log, start); notKept != nil {
			log.Warn(fmt.Sprintf("The training has no receipt: %v", notKept))
		}
	}
	return err
}

// keepReceipt writes the receipt of a training that has ended, with what the nodes know if they answer.
func keepReceipt(ctx context.Context, clients *kube.Clients, log *slog.Logger, of receipt.Start) error {
	const patience = time.Minute // for the nodes to answer, and some requests
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	m, err := receipt.ReadJournal(ctx, clients.Kube, clients.Namespace, of.Run)
	if err != nil {
		return err
	}
	environment := env.Of(clients, of.Environment)
	released := "the environment is kept"
	set, err := environment.Nodes(ctx, "")
	if err != nil {
		released = err.Error()
	} else {
		defer set.Close()
	}
	mode, err := environment.Mode(ctx)
	if err != nil {
		mode = agent.TCP // as of an environment that is gone
	}
	r := teardown.Summarize(ctx, log, m, set, mode)
	r.Teardown = released
	return errors.Join(m.Finish(ctx, clients.Kube, r), receipt.Prune(ctx, clients.Kube, clients.Namespace, of.Environment, "", true))
}
