package dev

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// training is one by the step train on a kept environment. It never runs next to another one.
type training struct {
	place
	options train.Options
}

func trainCommand() *cobra.Command {
	var t training
	cmd := &cobra.Command{
		Use:   "train SCRIPT [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]",
		Short: "Train on all nodes of a kept environment, now",
		Long: `Launch a script on all nodes of an environment that is up and follow it to its end, with the code of the step
train: the same launchers, variables, record and answers. The script runs in the tree that mlenv sync put there
last; a path that begins with / is one on the nodes. Again takes seconds: nothing is built or made.

Arguments before -- are variables for the ranks, those after it are the script's own. Ctrl-C stops the training. One that
was left running, because this machine went away, is in the way of the next one; --replace stops it.

Exit code 0: every rank exited with 0; 1: not, and the rank that failed first is named; 2: wrong usage.`,
		Example: `  mlenv train train.py
  mlenv train train.py NCCL_DEBUG=WARN --launcher=torchrun -- --steps 500 --lr 3e-4
  mlenv train train.py --debug-rank=0   # it waits for a debugger on port 5678`,
		Args: t.parse,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.train(cmd.Context(), step.Log(cmd), step.Output(cmd))
		},
	}
	t.addTo(cmd.Flags())
	step.AddLogFormat(cmd)
	return cmd
}

func (t *training) addTo(flags *pflag.FlagSet) {
	t.place.addTo(flags)
	t.options.AddFlags(flags)
	flags.BoolVar(&t.options.Replace, "replace", t.options.Replace, "stop a training of a person that still runs on these nodes first")
}

// parse takes the script from the first argument.
func (t *training) parse(cmd *cobra.Command, args []string) error {
	o := &t.options
	o.Env, o.Args = train.AtDash(cmd, args)
	if len(o.Env) == 0 || strings.Contains(o.Env[0], "=") {
		return errors.Join(errors.New("an argument is missing: want the training script"), o.Check())
	}
	o.Script, o.Env = o.Env[0], o.Env[1:]
	return o.Check()
}

func (t *training) train(ctx context.Context, log *slog.Logger, out io.Writer) error {
	clients, err := t.connect(ctx)
	if err != nil {
		return err
	}
	options := t.options
	options.Name, options.Exclusive = t.environment, true
	_, err = train.Run(ctx, train.Deps{Clients: clients, Log: log, Out: out}, options)
	return err
}
