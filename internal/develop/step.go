package develop

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Flags as people know them here, and as the steps call them; both are understood.
const (
	environmentFlag = "environment"
	clusterFlag     = "cluster"
)

func stepName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "name":
		name = environmentFlag
	case "cluster-file":
		name = clusterFlag
	}
	return pflag.NormalizedName(name)
}

// clusterUsage is what --cluster is for where no environment is made.
const clusterUsage = "cluster file, whose namespace is meant where --namespace names none"

// ofStep makes a step's command one for people on a kept environment: the flags that only
// Tasks give are not shown, and --environment and --cluster are what they are everywhere here.
func ofStep(cmd *cobra.Command) *cobra.Command {
	cmd = step.ForPeople(cmd)
	flags := cmd.Flags()
	flags.SetNormalizeFunc(stepName)
	for _, name := range []string{"client-certs", "env-secret-dir", "artifacts"} {
		if flag := flags.Lookup(name); flag != nil {
			flag.Hidden = true // folders that Tasks mount
		}
	}
	if flags.Lookup(clusterFlag) != nil {
		return cmd
	}
	file := flags.String(clusterFlag, "", clusterUsage)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !flags.Changed("namespace") {
			namespace, err := namespaceIn(*file)
			if err != nil {
				return err
			}
			if err := flags.Set("namespace", namespace); err != nil {
				return err
			}
		}
		return run(cmd, args)
	}
	return cmd
}

// environmentFirst lets the first argument be the environment's name, as --environment.
func environmentFirst(cmd *cobra.Command) *cobra.Command {
	flags, rest := cmd.Flags(), cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if flag := flags.Lookup(environmentFlag); flag.Changed && flag.Value.String() != args[0] {
				return fmt.Errorf("environment %q and --%s %q: want one of them", args[0], environmentFlag, flag.Value)
			}
			if err := flags.Set(environmentFlag, args[0]); err != nil {
				return err
			}
			args = args[1:]
		}
		return rest(cmd, args)
	}
	return cmd
}
