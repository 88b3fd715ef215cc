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
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
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
	param.Name.AddTo(flags, &o.Name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	param.Script.AddTo(flags, &o.Script, "script", "", "path of the script in the repository, or -m PACKAGE.MODULE")
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

// AddFlags adds the flags that the step and mlenv share, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	param.DeepSpeedConfig.AddTo(flags, &o.DeepSpeedConfig, "deepspeed-config", "", "path of a DeepSpeed configuration in the repository, "+
		"passed to the script as --deepspeed --deepspeed_config FILE")
	param.Launcher.AddTo(flags, &o.Launcher, "launcher", agent.DeepSpeed, "how the ranks start: deepspeed and torchrun give each rank the "+
		"variables of that launcher, command runs the script once on every node, deepspeed-launcher and torchrun-launcher run the "+
		"launcher itself")
	param.Count.AddTo(flags, &o.RanksPerNode, "ranks-per-node", 0, "ranks per node (default: one per GPU)")
	param.Duration.AddTo(flags, &o.Timeout, "timeout", 30*time.Minute, "how long the training may run; then the nodes stop it")
	param.Restarts.AddTo(flags, &o.MaxRestarts, "max-restarts", 0, "how often to start the training again after a rank failed or a node was "+
		"lost, within the same --timeout")
	flags.StringVar((*string)(&o.Tree), "tree", "", "hash of the tree to run in (default: the one synced last)")
	flags.DurationVar(&o.ProgressEvery, "progress-every", 10*time.Second, "how often to show progress, if the training writes metrics")
	flags.Var(&o.HangTimeout, "hang-timeout", HangTimeoutUsage)
	flags.Var(&o.StopIf, "stop-if", "rule that ends the training: "+rules.Forms+"; may be repeated")
	flags.Var(&o.RestartIf, "restart-if", "rule after which the training is started again, as --max-restarts allows, in the forms of "+
		"--stop-if; may be repeated")
	param.Consequence.AddTo(flags, &o.Rendezvous, "require-rendezvous", param.Warn,
		"what to do if every rank exits with 0 but none was ever connected to another one: warn or fail")
	flags.IntVar(&o.DebugRank, "debug-rank", -1, "rank that waits for a debugger before it starts, from 0; -1 for none")
}

// AddStopGrace adds the flag of how long ranks have to save. By default value is the time, 0 for the environment's.
func (o *Options) AddStopGrace(flags *pflag.FlagSet, value time.Duration) {
	usage := "how long the ranks have to save after SIGTERM at the end of --timeout, when the training is cancelled, and when a pod is " +
		"evicted, " +
		"drained or preempted"
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
		command.Want(o.DebugRank >= -1, "--debug-rank %d: want a rank from 0, or -1 for none", o.DebugRank),
		command.Want(o.DebugRank < 0 || o.Launcher != agent.Command, "--debug-rank %d: launcher command starts programs, not ranks; want "+
			"--launcher deepspeed or torchrun", o.DebugRank),
		command.Want(o.Tree == "" || o.Tree.Valid(), "--tree %q: want 64 hex digits, as in the result tree of sync-repo", o.Tree),
		command.Want(o.ProgressEvery > 0, "--progress-every %s: must be positive", o.ProgressEvery),
		o.Run.Check(),
		errors.Join(rules.Conflicts(o.StopIf.Rules, o.RestartIf.Rules, o.MaxRestarts)...),
	)...)
}
