// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

type rdmaOptions struct {
	envflags.Flags
	check  bool
	output command.OutputFlag
	// node is -1 for all.
	node int
}

// RDMACommand returns the command mlenv rdma.
func RDMACommand() *cobra.Command {
	o := rdmaOptions{Flags: envflags.Flags{Reads: true}, node: -1}
	cmd := &cobra.Command{
		Use:   "rdma [ENVIRONMENT] [NODE]",
		Short: "Show the RDMA devices of an environment's nodes, and what is wrong with them",
		Long: `Show the RDMA devices that the agents of an environment detect: ports, GIDs, rates, PCIe links, distances to the GPUs,
lockable memory, capabilities, the SCC, the IOMMU; the differences between the nodes; and NCCL's settings that follow.
NODE is the number of a node, from 0; without it mlenv shows all.

Exit code 0: shown; 1: the nodes did not answer, or with --check something is wrong; 2: wrong usage.`,
		Example: `  mlenv rdma
  mlenv rdma h-kim 1 --output=json
  mlenv rdma --check --cluster-file clusters/barcelona.yaml`,
		Args: func(cmd *cobra.Command, args []string) error { return o.parse(cmd.Flags(), args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	o.AddTo(flags, "cluster file whose network.rdma is compared with the devices (default: none)")
	flags.BoolVar(&o.check, "check", false, "print one line per node, and exit with 1 if something is wrong")
	o.output.AddTo(flags, command.Text, command.JSON, command.YAML)
	return cmd
}

// parse takes a number for the node: the name of an environment begins with a letter.
func (o *rdmaOptions) parse(flags *pflag.FlagSet, args []string) error {
	if len(args) > 0 {
		last := len(args) - 1
		if node, err := strconv.Atoi(args[last]); err == nil && node >= 0 {
			o.node, args = node, args[:last]
		} else if len(args) > 1 {
			return fmt.Errorf("node %q: want its number in the environment, 0 and up", args[last])
		}
	}
	return envflags.ParseName(flags, args)
}

type rdmaNode struct {
	Node           int    `json:"node"`
	Pod            string `json:"pod"`
	KubernetesNode string `json:"kubernetesNode"`
	SCC            string `json:"scc,omitempty"`
	// GPUs are the node's, in words.
	GPUs  string     `json:"gpus,omitempty"`
	Facts rdma.Facts `json:"facts"`
	NCCL  rdma.Plan  `json:"nccl"`
}

type rdmaReport struct {
	Nodes []rdmaNode `json:"nodes"`
	// Between are the findings between nodes.
	Between []fail.Finding `json:"between,omitempty"`
}

func (o *rdmaOptions) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	file, err := o.Load(ctx)
	if err != nil {
		return err
	}
	clients, err := o.Connect(ctx, command.TextLog(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	report, err := detect(ctx, clients, o.Environment, network.FromFile(file, agent.RDMA))
	if err != nil {
		return err
	}
	if o.node >= len(report.Nodes) {
		return fmt.Errorf("node %d: environment %s/%s has nodes 0 to %d", o.node, clients.Namespace, o.Environment, len(report.Nodes)-1)
	}
	if o.node >= 0 {
		report = rdmaReport{Nodes: report.Nodes[o.node : o.node+1]}
	}
	err = o.output.Print(cmd.OutOrStdout(), report, func(out io.Writer) error {
		report.print(out, o.check)
		return nil
	})
	if err == nil && o.check && !report.fine() {
		return &command.Exit{Code: command.Failed}
	}
	return err
}

func detect(ctx context.Context, clients *kube.Clients, name string, settings network.Settings) (rdmaReport, error) {
	e := env.Of(clients, name)
	set, err := e.Nodes(ctx, "")
	if err != nil {
		return rdmaReport{}, err
	}
	defer set.Close()
	found := make([]rdmaNode, len(set))
	err = set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		n := client.Node()
		facts, err := client.RDMA(ctx, settings.Expected)
		found[n] = rdmaNode{Node: n, Pod: e.PodName(n), Facts: facts}
		if err != nil {
			return err
		}
		if about, err := client.Facts(ctx); err == nil {
			found[n].GPUs = describeGPUs(about.GPUs)
		}
		// The annotations are optional: the user may not be allowed to read pods.
		if pod, err := e.Pod(ctx, n); err == nil {
			found[n].KubernetesNode, found[n].SCC = pod.Spec.NodeName, pod.Annotations[objects.AdmittedByAnnotation]
		}
		return nil
	})
	if err != nil {
		return rdmaReport{}, err
	}
	var all []rdma.Facts
	for _, node := range found {
		all = append(all, node.Facts)
	}
	for n := range found {
		found[n].NCCL = rdma.NewPlan(all, n, settings.Expected, settings.Forced)
	}
	return rdmaReport{Nodes: found, Between: rdma.Compare(all)}, nil
}

// describeGPUs returns for example "4 GPUs: NVIDIA H100 80GB HBM3, compute 9.0, driver 580.95.05", "" for none.
func describeGPUs(gpus []agent.GPU) string {
	if len(gpus) == 0 {
		return ""
	}
	text := humanize.Count(len(gpus), "GPU") + ": " + gpus[0].Model
	if gpus[0].Compute != "" {
		text += ", compute " + gpus[0].Compute
	}
	return text + ", driver " + gpus[0].Driver
}

func (r rdmaReport) fine() bool {
	for _, node := range r.Nodes {
		if _, fine := node.Facts.Check(); !fine {
			return false
		}
	}
	return !slices.ContainsFunc(r.Between, func(f fail.Finding) bool { return f.Level != fail.Note })
}

// print writes everything, or one line per node if brief is true.
func (r rdmaReport) print(w io.Writer, brief bool) {
	for _, node := range r.Nodes {
		if brief {
			line, _ := node.Facts.Check()
			fmt.Fprintf(w, "node %d (%s): %s\n", node.Node, cmp.Or(node.KubernetesNode, node.Pod), line)
			continue
		}
		fmt.Fprintf(w, "node %d: pod %s on %s, SCC %s, %s\n\n", node.Node, node.Pod, cmp.Or(node.KubernetesNode, "an unknown node"),
			cmp.Or(node.SCC, "unknown"),
			cmp.Or(node.GPUs, "no GPU"))
		node.Facts.Print(w)
		fmt.Fprintln(w)
		if len(node.NCCL.Variables) > 0 {
			node.NCCL.Print(w)
			fmt.Fprintln(w)
		}
	}
	if len(r.Between) > 0 {
		fmt.Fprintln(w, "between the nodes:")
		for _, finding := range r.Between {
			finding.Print(w)
		}
	}
}
