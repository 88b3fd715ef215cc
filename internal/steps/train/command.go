package train

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/step/secretdir"
)

// Command is the step train.
func Command() *cobra.Command {
	var o Options
	var cluster kube.Flags
	var secretDir string
	cmd := &cobra.Command{
		Use:   "train --script FILE [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]",
		Short: "Launch a training on all nodes of an environment and follow it",
		Long: `Launch a training on all nodes of an environment and follow it to its end.

The script runs in the tree that sync-repo put there. Arguments before -- are
variables for the ranks, those after it are the script's own. It succeeds when
every rank of every node has exited with 0. If not, it names the rank that failed
first by an error of its own, and stops the rest.`,
		Example: `  train --script train.py --launcher deepspeed --deepspeed-config ds_zero2.json
  train --script train.py NCCL_DEBUG=WARN -- --steps 500 --lr 3e-4`,
		Args: func(cmd *cobra.Command, args []string) error {
			o.Env, o.Args = AtDash(cmd, args)
			var missing error
			if o.Script == "" {
				missing = errors.New("--script is missing: want the path of the script in the repository")
			}
			return errors.Join(missing, o.Check())
		},
	}
	flags := cmd.Flags()
	cluster.AddTo(flags)
	o.AddFlags(flags)
	// What follows mlenv has by other means, or is what only Tasks give.
	o.Run.AddTo(flags)
	flags.StringVar(&o.Name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	flags.StringVar(&o.Script, "script", "", "path of the script in the repository")
	flags.StringVar(&secretDir, "env-secret-dir", "", "folder of a mounted Secret whose keys become variables of the ranks")
	metrics := step.NewResult(cmd, "metrics", "the last values of the training's own metrics, as one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := cluster.Connect()
		if err != nil {
			return err
		}
		if o.SecretEnv, err = secretdir.Read(secretDir); err != nil {
			return err
		}
		result, err := Run(cmd.Context(), Deps{Clients: clients, Log: step.Log(cmd), Out: step.Output(cmd)}, o)
		return errors.Join(err, metrics.Write(result.Metrics))
	}
	return cmd
}

// AddFlags adds the flags that the step and mlenv share, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.DeepSpeedConfig, "deepspeed-config", "", "path of a DeepSpeed configuration in the repository, given to the script as --deepspeed_config")
	flags.StringVar((*string)(&o.Launcher), "launcher", string(agent.DeepSpeed), "what starts the ranks: deepspeed, torchrun, or command (the script once a node)")
	flags.IntVar(&o.RanksPerNode, "ranks-per-node", 0, "ranks on each node (default: one for each of its GPUs)")
	flags.DurationVar(&o.Timeout, "timeout", 40*time.Minute, "time for the training; the nodes stop it by themselves when it has passed")
	flags.StringVar((*string)(&o.Tree), "tree", "", "hash of the tree to run in (default: the one synced last)")
	flags.DurationVar(&o.ProgressEvery, "progress-every", 10*time.Second, "how often progress is shown, where the training writes metrics")
	flags.IntVar(&o.DebugRank, "debug-rank", -1, "rank that waits for a debugger before it begins, from 0; -1 for none")
}

// AtDash splits arguments into those before -- and those after it.
func AtDash(cmd *cobra.Command, args []string) (before, after []string) {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		at = len(args)
	}
	return args[:at], args[at:]
}

// Check finds every mistake of the options but a missing script.
func (o *Options) Check() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, entry := range o.Env {
		if key, _, ok := strings.Cut(entry, "="); !ok || key == "" || strings.ContainsAny(key, " \t\n") {
			wrong("argument %q: want KEY=VALUE; arguments of the script go after --", entry)
		}
	}
	switch o.Launcher {
	case agent.DeepSpeed, agent.Torchrun, agent.Command:
	default:
		wrong("--launcher %q: want deepspeed, torchrun or command", o.Launcher)
	}
	if o.RanksPerNode < 0 {
		wrong("--ranks-per-node %d: want at least 1, or 0 for one a GPU", o.RanksPerNode)
	}
	if o.Timeout <= 0 {
		wrong("--timeout %s: want more than nothing", o.Timeout)
	}
	if o.DebugRank < -1 {
		wrong("--debug-rank %d: want a rank from 0, or -1 for none", o.DebugRank)
	}
	if o.DebugRank >= 0 && o.Launcher == agent.Command {
		wrong("--debug-rank %d: launcher command starts programs and no ranks; want --launcher deepspeed or torchrun", o.DebugRank)
	}
	if o.Tree != "" && !o.Tree.Valid() {
		wrong("--tree %q: want 64 hex digits, as the result tree of sync-repo has", o.Tree)
	}
	if o.ProgressEvery <= 0 {
		wrong("--progress-every %s: want more than nothing", o.ProgressEvery)
	}
	return errors.Join(append(problems, o.Run.Check())...)
}
