// SPDX-License-Identifier: Apache-2.0

// Package envflags has the flags and the argument by which commands name an environment.
package envflags

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// NameFlag is the flag that names the environment.
const NameFlag = "name"

// OnlyNamespace describes --cluster-file of a command that needs no more of the file.
const OnlyNamespace = "cluster file; its namespace is used without --namespace"

// Flags name an environment and its cluster.
type Flags struct {
	Kube        kube.Flags
	Environment string
	// ClusterFile is the path of a cluster file, "" for none.
	ClusterFile string
	// Reads is true for a command that changes nothing: it may examine the environment of another user.
	Reads bool
	// Runs is true for a command that takes a run in place of its environment.
	Runs bool

	flags *pflag.FlagSet
}

// AddTo adds the flags; --name only if the command has none of its own. use describes --cluster-file.
func (f *Flags) AddTo(flags *pflag.FlagSet, use string) {
	f.flags = flags
	f.Kube.AddTo(flags)
	if flags.Lookup(NameFlag) == nil {
		flags.StringVar(&f.Environment, NameFlag, objects.DefaultName, "name of the environment")
	}
	flags.Lookup(NameFlag).Usage = "name of the environment (without it: the only one that you hold, else the default)"
	flags.StringVar(&f.ClusterFile, "cluster-file", "", use)
}

// Connected returns the RunE of a command that works with the cluster of its flags.
func Connected(flags *kube.Flags, run func(cmd *cobra.Command, clients *kube.Clients, args []string) error) func(
	*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		clients, err := flags.Connect()
		if err != nil {
			return err
		}
		return run(cmd, clients, args)
	}
}

// ParseName takes the name of an environment from the only argument, which means the same as --name.
func ParseName(flags *pflag.FlagSet, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case len(args) > 1:
		return fmt.Errorf("arguments %q: want one environment or none", args)
	}
	if name := flags.Lookup(NameFlag).Value.String(); flags.Changed(NameFlag) && name != args[0] {
		return fmt.Errorf("environment %q and --%s %q: want one of them", args[0], NameFlag, name)
	}
	return flags.Set(NameFlag, args[0])
}

// Load reads the cluster file; without --cluster-file it is empty.
func (f *Flags) Load(ctx context.Context) (cluster.File, error) {
	if f.ClusterFile == "" {
		return cluster.File{}, nil
	}
	return clusterfile.Load(ctx, f.ClusterFile, f.Kube)
}

// Connect returns the clients, for the namespace of --namespace or else of the cluster file, and chooses the environment
// if the command line names none. log gets the choice, unless it is the default.
func (f *Flags) Connect(ctx context.Context, log *slog.Logger) (*kube.Clients, error) {
	file, err := f.Load(ctx)
	if err != nil {
		return nil, err
	}
	clients, err := f.ConnectTo(file)
	if err != nil {
		return nil, f.notLocal(err)
	}
	return clients, f.find(ctx, clients, log)
}

// find chooses the environment, and replaces the name of a run by it.
func (f *Flags) find(ctx context.Context, clients *kube.Clients, log *slog.Logger) error {
	if err := f.choose(ctx, clients, log); err != nil {
		return err
	}
	return f.resolve(ctx, clients)
}

// ConnectTo is Connect with a cluster file that was loaded, and without a choice.
func (f *Flags) ConnectTo(file cluster.File) (*kube.Clients, error) {
	clients, err := f.Kube.Connect()
	if err != nil {
		return nil, err
	}
	clients.Namespace = f.Kube.NamespaceOf(clients, file.Cluster.Namespace)
	return clients, nil
}

// choose sets --name if the command line does not: to the only environment that the caller holds, or else to the default.
// A command that only reads takes the only one of the namespace, even if another user holds it. Errors: InvalidInput if the caller holds
// several, and none of them is the default.
func (f *Flags) choose(ctx context.Context, clients *kube.Clients, log *slog.Logger) error {
	if f.flags.Changed(NameFlag) {
		return nil
	}
	all, err := lease.List(ctx, clients.Kube, clients.Namespace)
	if err != nil {
		return nil //nolint:nilerr // the command itself reports what it may not read
	}
	me, err := lease.Person(ctx, clients.Kube)
	mine := slices.DeleteFunc(slices.Clone(all), func(l coordinationv1.Lease) bool { return err != nil || lease.HolderOf(&l).ID != me.ID })
	if f.Reads && len(mine) == 0 {
		mine = all
	}
	isDefault := func(l coordinationv1.Lease) bool { return l.Name == objects.DefaultName }
	switch {
	case len(mine) == 0, slices.ContainsFunc(mine, isDefault):
		return nil
	case len(mine) > 1:
		names := humanize.Each(mine, func(l coordinationv1.Lease) string { return l.Name })
		return &command.Exit{Code: command.WrongUsage,
			Err: fail.Advise(fail.Becausef(fail.InvalidInput, "choosing an environment in namespace %s: there are %s: want one of them",
				clients.Namespace, strings.Join(names, ", ")), "--%s=%s", NameFlag, names[0])}
	}
	only := &mine[0]
	log.Info(fmt.Sprintf("Environment %s/%s: %s.", clients.Namespace, only.Name,
		env.Of(clients, only.Name).Lease(log).ReadHolder(ctx, only).Describe()))
	return f.flags.Set(NameFlag, only.Name)
}
