// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line mlenv.
package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/action"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/claims"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/dev"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/initcluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/live"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/ops"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/runs"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/schedule"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/setup"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

// Main runs the command line and returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 cancelled.
func Main(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetOut(stdout) // the completion command keeps it
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	// cobra would parse the flags of an unknown command, and know none of them. Those of completion begin with __, and come later.
	if _, _, err := root.Find(args); err != nil && !strings.HasPrefix(args[0], "__") {
		if i := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") }); i >= 0 {
			args = args[i : i+1]
		}
	}
	root.Args, root.DisableFlagsInUseLine = known, true
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, group := range root.Commands() {
		// cobra would print the help for an unknown command, and succeed.
		if !group.Runnable() {
			group.Args, group.DisableFlagsInUseLine = known, true
			group.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		} else if group.Name() == "help" {
			group.Args = func(_ *cobra.Command, args []string) error {
				of, rest, _ := root.Find(args) // its error does not list the commands
				return known(of, rest)
			}
		}
	}
	return command.MainCommands(root, args, stdout, stderr)
}

// known returns the error of arguments after a group, which name no command of it.
func known(group *cobra.Command, args []string) error {
	if len(args) == 0 || !group.HasSubCommands() {
		return nil
	}
	if meant := named(group, args[0]); meant != "" {
		return fmt.Errorf("unknown command %q for %q%s", args[0], group.CommandPath(), meant)
	}
	shown := slices.DeleteFunc(slices.Clone(group.Commands()), func(c *cobra.Command) bool { return c.Hidden })
	return fmt.Errorf("unknown command %q for %q: want one of %s", args[0], group.CommandPath(),
		strings.Join(humanize.Each(shown, (*cobra.Command).Name), ", "))
}

// ofOthers are commands of kubectl, oc, docker, tkn, ssh and Slurm, with what stands for them here.
var ofOthers = map[string]string{
	"attach":   "mlenv logs RUN --follow",
	"cp":       "mlenv fetch RUN PATH, or scp after mlenv ssh-config",
	"create":   "mlenv up",
	"delete":   "mlenv down, or mlenv cancel RUN",
	"describe": "mlenv status RUN",
	"exec":     "mlenv shell NODE -- COMMAND",
	"get":      "mlenv runs",
	"kill":     "mlenv cancel RUN",
	"list":     "mlenv runs",
	"ls":       "mlenv runs",
	"ps":       "mlenv runs",
	"rm":       "mlenv down, or mlenv cancel RUN",
	"rsync":    "mlenv sync, or rsync after mlenv ssh-config",
	"sbatch":   "mlenv run . SCRIPT",
	"scancel":  "mlenv cancel RUN",
	"scp":      "scp after mlenv ssh-config",
	"sftp":     "sftp after mlenv ssh-config",
	"squeue":   "mlenv runs",
	"srun":     "mlenv run . SCRIPT",
	"ssh":      "mlenv shell NODE, or ssh after mlenv ssh-config",
	"start":    "mlenv run . SCRIPT",
	"stop":     "mlenv cancel RUN, or mlenv down",
	"tail":     "mlenv logs RUN --follow",
	"watch":    "mlenv top, or mlenv runs --watch",
}

// named returns what an unknown command probably means, as the rest of a sentence.
func named(group *cobra.Command, typed string) string {
	if group.HasParent() {
		return "" // its commands are few
	}
	if own := ofOthers[typed]; own != "" {
		return "; here it is " + own
	}
	var names []string
	for _, known := range group.Commands() {
		if !known.Hidden {
			names = append(names, known.Name())
		}
	}
	if near := humanize.Nearest(typed, names); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:     "mlenv",
		Short:   "Train on the GPU nodes of an OpenShift cluster",
		Version: version.String(),
	}
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"run", "Run a training and look at it:", []*cobra.Command{
			runs.RunCommand(mldevenv.Bundle), runs.ListCommand(), runs.StatusCommand(), runs.LogsCommand(), runs.CancelCommand(),
			runs.ReceiptCommand(), runs.FetchCommand(), runs.PruneCommand(), schedule.Command(),
		}},
		{"develop", "Develop in a kept environment:", append(dev.Commands(), claims.Command())},
		{"cluster", "Check a cluster, an environment and its network:", []*cobra.Command{
			nodes.Command(), ops.PreflightCommand(), ops.CheckFabricCommand(), ops.RDMACommand(), ops.DoctorCommand(),
			live.TopCommand(), live.UICommand(),
		}},
		{"administer", "Set up and administer:", []*cobra.Command{
			initcluster.Command(), ops.ValidateCommand(), setup.InstallCommand(mldevenv.Bundle, schedule.ObjectsWithImage),
			setup.UninstallCommand(), setup.AdminCommand(), ops.BuildCommand(mldevenv.Images()),
		}},
		{"more", "More commands:", []*cobra.Command{action.Command(), versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, c := range group.commands {
			c.GroupID = group.id
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("more")
	root.SetCompletionCommandGroupID("more")
	root.SetFlagErrorFunc(hint)
	completeValues(root)
	addHelp(root)
	return root
}

// Flags of torchrun, deepspeed, accelerate launch and mpirun, with the flag of mlenv run that stands for them, and those that need none.
var (
	ofLaunchers = map[string]string{
		"nnodes": "nodes", "num-nodes": "nodes", "num-machines": "nodes",
		"nproc-per-node": "ranks-per-node", "num-gpus": "ranks-per-node", "npernode": "ranks-per-node", "ntasks-per-node": "ranks-per-node",
	}
	setByMLEnv = []string{
		"node-rank", "machine-rank", "master-addr", "master-port", "main-process-ip", "main-process-port", "rdzv-backend", "rdzv-endpoint",
		"rdzv-id",
		"rdzv-conf", "standalone", "hostfile", "num-processes",
	}
)

// hint names the flag that an unknown one probably means, and explains where flags of a script go.
func hint(cmd *cobra.Command, err error) error {
	unknown := (*pflag.NotExistError)(nil)
	if !errors.As(err, &unknown) {
		return err
	}
	if strings.Contains(cmd.Use, "[-- ") {
		err = fmt.Errorf("%w; flags of the script or command go after --", err)
	}
	name := strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-")
	if own := ofLaunchers[name]; own != "" && cmd.Flags().Lookup(own) != nil {
		return fmt.Errorf("%w; its name here is --%s", err, own)
	} else if slices.Contains(setByMLEnv, name) && cmd.Flags().Lookup("ranks-per-node") != nil {
		return fmt.Errorf("%w; the launcher gets it by itself", err)
	}
	var names []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	if near := humanize.Nearest(unknown.GetSpecifiedName(), names); near != "" && unknown.GetSpecifiedShortnames() == "" {
		err = fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}

func versionCommand() *cobra.Command {
	var output command.OutputFlag
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Long: "Print the version.\n\nExit code 0: printed; 2: wrong usage.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return output.Print(cmd.OutOrStdout(), map[string]string{"version": version.String()}, func(out io.Writer) error {
				_, err := fmt.Fprintf(out, "mlenv version %s\n", version.String())
				return err
			})
		},
	}
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML)
	return cmd
}
