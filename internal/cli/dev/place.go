package dev

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

const nameFlag = "name"

// place says which environment is meant, of which cluster.
type place struct {
	kube        kube.Flags
	environment string
	// cluster is the path of a cluster file, "" for none.
	cluster string
}

func (p *place) addTo(flags *pflag.FlagSet) {
	p.addFlags(flags, "cluster file, whose namespace is meant where --namespace names none")
}

// addFlags says what the cluster file is for.
func (p *place) addFlags(flags *pflag.FlagSet, clusterFile string) {
	p.kube.AddTo(flags)
	flags.StringVar(&p.environment, nameFlag, objects.DefaultName, "name of the environment")
	flags.StringVar(&p.cluster, "cluster-file", "", clusterFile)
}

// parse takes the environment's name from the first argument, as --name.
func (p *place) parse(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.Flags().Changed(nameFlag) && p.environment != args[0] {
		return fmt.Errorf("environment %q and --%s %q: want one of them", args[0], nameFlag, p.environment)
	}
	p.environment = args[0]
	return step.FlagsOnly(args[1:])
}

// load reads the cluster file; without --cluster-file it is empty.
func (p *place) load(ctx context.Context) (cluster.File, error) {
	if p.cluster == "" {
		return cluster.File{}, nil
	}
	return clusterfile.Load(ctx, p.cluster, p.kube)
}

// connect makes the clients, without asking the cluster for anything.
func (p *place) connect(ctx context.Context) (*kube.Clients, error) {
	file, err := p.load(ctx)
	if err != nil {
		return nil, err
	}
	return p.connectTo(file)
}

// connectTo is connect with the cluster file that was loaded.
func (p *place) connectTo(file cluster.File) (*kube.Clients, error) {
	clients, err := p.kube.Connect()
	if err != nil {
		return nil, err
	}
	clients.Namespace = p.kube.NamespaceOf(clients, file.Cluster.Namespace)
	return clients, nil
}

// attach connects to the nodes too, and keeps the environment while they are worked with.
func (p *place) attach(ctx context.Context, log *slog.Logger) (clients *kube.Clients, set nodes.Set, detach func(), err error) {
	if clients, err = p.connect(ctx); err != nil {
		return nil, nil, nil, err
	}
	set, detach, err = nodes.Attach(ctx, clients, log, p.environment, "", run.Flags{})
	return clients, set, detach, err
}

// has is an error where the environment has no such node.
func (p *place) has(clients *kube.Clients, set nodes.Set, node int) error {
	if node >= len(set) {
		return fail.Becausef(fail.InvalidInput, "node %d: environment %s/%s has nodes 0 to %d", node, clients.Namespace, p.environment, len(set)-1)
	}
	return nil
}
