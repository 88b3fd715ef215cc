// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
	"github.com/ml-dev-env/ml-dev-env/internal/secretdir"
)

// Command returns the step train.
func Command() *cobra.Command {
	var o Options
	var cluster kube.Flags
	var secretDir string
	var notified notify.Flags
	cmd := &cobra.Command{
		Use:   "train --script SCRIPT [--] [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]",
		Short: "Start a training on all nodes of an environment and follow it",
		Long: `Start a training on all nodes of an environment and follow it until it ends.

The script runs in the tree that sync-repo uploaded. Arguments before -- are environment variables of the ranks,
arguments after it are the script's. A -- in front of the variables keeps any of them from being read as a flag.

The step succeeds when every rank of every node exits with 0. If a rank fails, the step names the one that failed
first by an error of its own, and stops the rest. If no rank prints or measures anything for longer than --hang-timeout,
the step writes the stacks of all ranks into the record, names the rank that the others wait for, and stops them.`,
		Example: `  train --script train.py --launcher deepspeed --deepspeed-config ds_zero2.json
  train --script "-m model.train" --launcher torchrun
  train --script train.py NCCL_DEBUG=WARN -- --steps 500 --lr 3e-4`,
		Args: func(cmd *cobra.Command, args []string) error {
			var stopIf, restartIf []string
			o.Env, stopIf, restartIf, o.Args = taskArguments(cmd, args)
			addRules(cmd.Flags(), "stop-if", stopIf)
			addRules(cmd.Flags(), "restart-if", restartIf)
			return errors.Join(command.Want(o.Script != "",
				"--script is missing: want the path of the script in the repository, or -m PACKAGE.MODULE"), o.Check())
		},
	}
	flags := cmd.Flags()
	cluster.AddTo(flags)
	o.AddFlags(flags)
	o.AddStopGrace(flags, agent.DefaultStopGrace)
	// The flags below are the step's alone: mlenv has other ways for them.
	o.Run.AddTo(flags)
	param.Flag(flags, &o.Name, task, "name")
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	param.Flag(flags, &o.Script, task, "script")
	flags.StringVar(&secretDir, "env-secret-dir", "", "folder of a mounted Secret whose keys become variables of the ranks")
	notified.AddTo(flags)
	metrics := command.NewResult(cmd, "metrics", "the last values of the training's own metrics, as one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := cluster.Connect()
		if err != nil {
			return err
		}
		if o.SecretEnv, err = secretdir.Read(secretDir); err != nil {
			return err
		}
		log := command.Log(cmd)
		about := notify.Event{Run: o.Run.Name, Namespace: clients.Namespace, Environment: o.Name}
		sender := notified.Open(log, about, o.Run.UID)
		defer sender.Wait()
		result, err := Run(cmd.Context(), Deps{Clients: clients, Log: log, Out: command.Output(cmd), Notify: sender.Send}, o)
		return cmp.Or(err, metrics.Write(result.Metrics))
	}
	return cmd
}

// taskArguments is AtDash for a command line that may have a first -- in front of all arguments. The Task has four groups of them with --
// in between; those of the rules are flags for users.
func taskArguments(cmd *cobra.Command, args []string) (env, stopIf, restartIf, script []string) {
	if cmd.ArgsLenAtDash() != 0 || !slices.Contains(args, "--") {
		env, script = AtDash(cmd, args)
		return env, nil, nil, script
	}
	const betweenGroups = 3
	groups := split(args, betweenGroups)
	if len(groups) <= betweenGroups { // a user's
		groups = split(args, 1)
		return groups[0], nil, nil, groups[1]
	}
	return groups[0], groups[1], groups[2], groups[3]
}

// split splits arguments at the first --, as often as there are any and at most so many times.
func split(args []string, most int) (groups [][]string) {
	for range most {
		at := slices.Index(args, "--")
		if at < 0 {
			break
		}
		groups, args = append(groups, args[:at]), args[at+1:]
	}
	return append(groups, args)
}

// addRules gives the rules of the Task to the flag, which keeps the mistakes in them.
func addRules(flags *pflag.FlagSet, name string, texts []string) {
	for _, text := range texts {
		_ = flags.Set(name, text) // the flag takes any text
	}
}

const task = "train"

// AddFlags adds the flags that the step and mlenv share, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	param.Flag(flags, &o.DeepSpeedConfig, task, "deepspeed-config")
	param.Flag(flags, &o.Launcher, task, "launcher")
	param.Flag(flags, &o.Hook, task, "hook")
	param.Flag(flags, &o.RanksPerNode, task, "ranks-per-node")
	param.Flag(flags, &o.Timeout, task, "timeout")
	param.Flag(flags, &o.MaxRestarts, task, "max-restarts")
	flags.StringVar((*string)(&o.Tree), "tree", "", param.Help(task, "tree"))
	param.Flag(flags, &o.ProgressEvery, task, "progress-every")
	flags.Var(&o.HangTimeout, "hang-timeout", param.Help(task, "hang-timeout"))
	flags.Var(&o.StopIf, "stop-if", "rules that end the training: "+rules.Forms+"; may be repeated")
	flags.Var(&o.RestartIf, "restart-if", param.Help(task, "restart-if")+"; may be repeated")
	param.Flag(flags, &o.Rendezvous, task, "require-rendezvous")
	param.Flag(flags, &o.DebugRank, task, "debug-rank")
}

// AddStopGrace adds the flag of how long ranks have to save. By default value is the time, 0 for the environment's.
func (o *Options) AddStopGrace(flags *pflag.FlagSet, value time.Duration) {
	usage := param.Help(task, "stop-grace")
	if value == 0 {
		usage += " (default: the environment's)"
	}
	param.StopGrace.AddTo(flags, &o.StopGrace, "stop-grace", value, usage)
}

// AtDash splits arguments into those before -- and those after it.
func AtDash(cmd *cobra.Command, args []string) (before, after []string) {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		at = len(args)
	}
	return args[:at], args[at:]
}

// Check reports all mistakes in the options, except a missing script.
func (o *Options) Check() error {
	var problems []error
	for _, entry := range o.Env {
		if err := param.Variable.Check(entry); err != nil {
			problems = append(problems, fmt.Errorf("argument %w; arguments of the script go after --", err))
		}
	}
	return errors.Join(append(problems,
		command.Want(o.DebugRank < 0 || o.Launcher != agent.Command, "--debug-rank %d: launcher command starts programs, not ranks; want "+
			"--launcher deepspeed or torchrun", o.DebugRank),
		command.Want(o.Launcher != agent.Command || o.Rendezvous != param.Fail, "--require-rendezvous=fail: the programs of launcher command "+
			"are not checked; want warn"),
		command.Want(o.Tree == "" || o.Tree.Valid(), "--tree %q: want 64 hex digits, as in the result tree of sync-repo", o.Tree),
		o.Run.Check(),
		errors.Join(rules.Conflicts(o.StopIf.Rules, o.RestartIf.Rules, o.MaxRestarts)...),
	)...)
}
