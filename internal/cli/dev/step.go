package dev

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Flags that all steps, and so all commands here, have.
const (
	nameFlag        = "name"
	clusterFileFlag = "cluster-file"
)

// clusterFileUsage is what --cluster-file is for where no environment is made.
const clusterFileUsage = "cluster file, whose namespace is meant where --namespace names none"

// ofStep makes a step's command one for people on a kept environment: the flags that only
// Tasks give are not shown, and there is a --cluster-file.
func ofStep(cmd *cobra.Command) *cobra.Command {
	cmd = step.ForPeople(cmd)
	flags := cmd.Flags()
	for _, name := range []string{"client-certs", "env-secret-dir", "artifacts"} {
		if flag := flags.Lookup(name); flag != nil {
			flag.Hidden = true // folders that Tasks mount
		}
	}
	if flags.Lookup(clusterFileFlag) != nil {
		return cmd
	}
	file := flags.String(clusterFileFlag, "", clusterFileUsage)
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

// environmentFirst lets the first argument be the environment's name, as --name.
func environmentFirst(cmd *cobra.Command) *cobra.Command {
	flags, rest := cmd.Flags(), cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if flag := flags.Lookup(nameFlag); flag.Changed && flag.Value.String() != args[0] {
				return fmt.Errorf("environment %q and --%s %q: want one of them", args[0], nameFlag, flag.Value)
			}
			if err := flags.Set(nameFlag, args[0]); err != nil {
				return err
			}
			args = args[1:]
		}
		return rest(cmd, args)
	}
	return cmd
}
