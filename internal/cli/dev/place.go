package dev

import (
	"context"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// place says which environment is meant, of which cluster.
type place struct {
	kube        kube.Flags
	environment string
	cluster     string
}

func (p *place) addTo(flags *pflag.FlagSet) {
	p.kube.AddTo(flags)
	flags.StringVar(&p.environment, nameFlag, objects.DefaultName, "name of the environment")
	flags.StringVar(&p.cluster, clusterFileFlag, "", clusterFileUsage)
}

// connect makes the clients, without asking the cluster for anything.
func (p *place) connect() (*kube.Clients, error) {
	namespace, err := namespaceIn(p.cluster)
	if err != nil {
		return nil, err
	}
	clients, err := p.kube.Connect()
	if err != nil {
		return nil, err
	}
	clients.Namespace = p.kube.NamespaceOf(clients, namespace)
	return clients, nil
}

// attach connects to the nodes too, and keeps the environment while they are worked with.
func (p *place) attach(ctx context.Context, log *slog.Logger) (clients *kube.Clients, set nodes.Set, detach func(), err error) {
	if clients, err = p.connect(); err != nil {
		return nil, nil, nil, err
	}
	set, detach, err = nodes.Attach(ctx, clients, log, p.environment, "", run.Flags{})
	return clients, set, detach, err
}

// namespaceIn is the namespace of a cluster file, "" where none is named.
func namespaceIn(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fail.Becausef(fail.InvalidInput, "reading the cluster file: %w", err)
	}
	file, err := cluster.Load(path, content)
	if err != nil {
		return "", fail.Because(fail.InvalidInput, err)
	}
	return file.Cluster.Namespace, nil
}

// has is an error where the environment has no such node.
func (p *place) has(clients *kube.Clients, set nodes.Set, node int) error {
	if node >= len(set) {
		return fail.Becausef(fail.InvalidInput, "node %d: environment %s/%s has nodes 0 to %d", node, clients.Namespace, p.environment, len(set)-1)
	}
	return nil
}
