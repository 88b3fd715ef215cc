// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// leaseUID stands for the UID that the API server will assign to the Lease.
const leaseUID = "00000000-0000-0000-0000-000000000000"

type preflightOptions struct {
	preflight.Options
	where    fileFlags
	services string
	output   command.OutputFlag
}

// PreflightCommand returns the command mlenv preflight.
func PreflightCommand() *cobra.Command {
	var o preflightOptions
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Show whether a run would start, on which nodes, and over which network",
		Long: strings.Replace(preflight.Description, "\n\nExit code", `

Above the checks mlenv prints the plan of the run or environment: its nodes, the order of their
ranks, the transport and the reason for it, the expected bandwidth, and the objects that would be
created.

With --output=yaml and --cluster-file mlenv prints these objects, and contacts no cluster. The
Secrets with certificates are left out, and the UID of the Lease, which owns the other objects, is a
placeholder. provision decides some settings by what it finds on the cluster; here --mode=auto means
rdma if the cluster file enables it and several nodes have GPUs, else tcp, and --storage=auto means
rwx if the file has a class for it.

Exit code`, 1),
		Example: `  mlenv preflight --nodes=4
  mlenv preflight --cluster-file=clusters/cairo.yaml --mode=rdma --output=json
  mlenv preflight --cluster-file=clusters/barcelona.yaml --output=yaml --image=IMAGE --steps-image=IMAGE | oc apply --dry-run=server -f -`,
		Args: o.parse,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	o.where.addTo(cmd)
	o.AddFlags(flags)
	param.StopGrace.AddTo(flags, &o.Request.StopGrace, "stop-grace", 0, param.Help("provision", "stop-grace")+
		" (default: nodes.stop_grace of the cluster file)")
	flags.StringVar(&o.services, "services", objects.NoServices, param.Help("provision", "services"))
	o.output.AddUse(flags, "text, or json for programs; yaml prints the objects of --cluster-file, without a cluster",
		command.Text, command.JSON, command.YAML)
	return cmd
}

func (o *preflightOptions) parse(_ *cobra.Command, args []string) error {
	o.Request.Services = objects.ParseServices(o.services)
	return errors.Join(command.FlagsOnly(args), command.Want(!o.output.Is(command.YAML) || o.where.file != "",
		"--output=yaml prints the objects of a cluster file: want --cluster-file with it"))
}

func (o *preflightOptions) run(cmd *cobra.Command) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	file, err := o.where.load(ctx)
	if err != nil {
		return err
	}
	if o.output.Is(command.YAML) {
		all, err := o.objects(file)
		if err != nil {
			return err
		}
		return command.WriteObjects(out, all)
	}
	clients, err := o.Connect(ctx, o.where.Flags, file)
	if err != nil {
		return err
	}
	registry, err := buildimage.RegistryFor(clients, "", "")
	if err != nil {
		return err
	}
	report := preflight.Examine(ctx, preflight.Deps{Clients: clients, Registry: registry}, o.Options)
	plan := preflight.PlanOf(ctx, clients.Kube, report)
	err = o.output.PrintAs("Preflight", out, plan, func(out io.Writer) error {
		plan.Print(out)
		fmt.Fprintln(out)
		report.Print(out)
		return nil
	})
	return cmp.Or(err, report.Err())
}

// objects returns the objects of the environment, the Lease first, by what the cluster file says. Errors: InvalidInput.
func (o *preflightOptions) objects(file cluster.File) ([]objects.Object, error) {
	r := o.Request
	r.Cluster, r.Namespace, r.Mode = file, cmp.Or(o.where.Namespace, file.Cluster.Namespace), o.Mode
	r = r.WithDefaults()
	if r.Mode == agent.Auto {
		r.Mode = agent.TCP
		if file.Network.RDMA.Enabled && preflight.Needless(r) == "" {
			r.Mode = agent.RDMA
		}
	}
	if r.Storage == cluster.AutoStorage {
		r.Storage = cluster.NodeStorage
		if file.Storage.ClassRWX != "" {
			r.Storage = cluster.SharedStorage
		}
	}
	made, err := objects.Build(r, objects.LeaseReference(r.Names().Lease, leaseUID), objects.Certificates{})
	if err != nil {
		return nil, err
	}
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: r.Names().Lease, Namespace: r.Namespace, Labels: objects.Labels(r.Name)},
	}
	all := slices.Concat([]objects.Object{lease}, made.Services.All(), made.InOrder())
	if made.PodMonitor != nil {
		all = append(all, made.PodMonitor)
	}
	return all, nil
}
