package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// rdmaOptions are the flags of mlenv rdma.
type rdmaOptions struct {
	kube        kube.Flags
	name        string
	clusterFile string
	check       bool
	output      step.OutputFlag
	// node is -1 for all.
	node int
}

// RDMACommand is mlenv rdma.
func RDMACommand() *cobra.Command {
	o := rdmaOptions{node: -1}
	cmd := &cobra.Command{
		Use:   "rdma [NODE]",
		Short: "Show the RDMA devices of an environment's nodes, and what is wrong with them",
		Long: `Show the RDMA devices that the nodes of an environment were given, as their agents
detect them: ports, GIDs, rates, PCIe links, distances to the GPUs, memory that can be
locked, capabilities, the SCC, the IOMMU; what differs between the nodes; and the
settings of NCCL that follow from it. Nothing is changed.

Exit code 0: shown; 1: it cannot be read, or with --check something is wrong; 2: wrong usage.`,
		Example: `  mlenv rdma
  mlenv rdma 1 --output=json
  mlenv rdma --check --cluster-file clusters/barcelona.yaml`,
		Args: func(_ *cobra.Command, args []string) error { return o.parse(args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	flags.StringVar(&o.name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.clusterFile, "cluster-file", "", "cluster file whose network.rdma is compared with what is there (default: nothing is)")
	flags.BoolVar(&o.check, "check", false, "print one line a node, and exit with 1 where something is wrong")
	o.output.AddTo(flags, step.Text, step.JSON, step.YAML)
	return cmd
}

func (o *rdmaOptions) parse(args []string) error {
	var problems []error
	if len(args) > 1 {
		problems = append(problems, fmt.Errorf("arguments %q: want one node or none", args))
	}
	if len(args) == 1 {
		node, err := strconv.Atoi(args[0])
		if err != nil || node < 0 {
			problems = append(problems, fmt.Errorf("node %q: want its number in the environment, 0 and up", args[0]))
		}
		o.node = node
	}
	return errors.Join(problems...)
}

// rdmaNode is what is shown of a node.
type rdmaNode struct {
	Node           int        `json:"node"`
	Pod            string     `json:"pod"`
	KubernetesNode string     `json:"kubernetesNode"`
	SCC            string     `json:"scc,omitempty"`
	Facts          rdma.Facts `json:"facts"`
	NCCL           rdma.Plan  `json:"nccl"`
}

// rdmaReport is what is shown of an environment.
type rdmaReport struct {
	Nodes []rdmaNode `json:"nodes"`
	// Between are the findings between nodes.
	Between rdma.Findings `json:"between,omitempty"`
}

func (o *rdmaOptions) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	var file cluster.File
	if o.clusterFile != "" {
		var err error
		if file, err = clusterfile.Load(ctx, o.clusterFile, o.kube); err != nil {
			return err
		}
	}
	clients, err := o.kube.Connect()
	if err != nil {
		return err
	}
	clients.Namespace = o.kube.NamespaceOf(clients, file.Cluster.Namespace)
	report, err := detect(ctx, clients, o.name, network.FromFile(file, agent.RDMA))
	if err != nil {
		return err
	}
	if o.node >= len(report.Nodes) {
		return fmt.Errorf("node %d: environment %s/%s has nodes 0 to %d", o.node, clients.Namespace, o.name, len(report.Nodes)-1)
	}
	if o.node >= 0 {
		report = rdmaReport{Nodes: report.Nodes[o.node : o.node+1]}
	}
	err = o.output.Print(cmd.OutOrStdout(), report, func(out io.Writer) error {
		report.print(out, o.check)
		return nil
	})
	if err != nil {
		return err
	}
	if o.check && !report.fine() {
		return &step.Exit{Code: step.Failed}
	}
	return nil
}

// detect asks the agents of all nodes at once.
func detect(ctx context.Context, clients *kube.Clients, name string, settings network.Settings) (rdmaReport, error) {
	set, err := nodes.Connect(ctx, clients, name, "")
	if err != nil {
		return rdmaReport{}, err
	}
	defer set.Close()
	found := make([]rdmaNode, len(set))
	err = set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		n := client.Node()
		facts, err := client.RDMA(ctx, settings.Expected)
		found[n] = rdmaNode{Node: n, Pod: objects.NamesOf(name).PodName(n), Facts: facts}
		if err != nil {
			return err
		}
		// Who may not read pods goes without their annotations.
		if pod, err := clients.Kube.CoreV1().Pods(clients.Namespace).Get(ctx, found[n].Pod, metav1.GetOptions{}); err == nil {
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

func (r rdmaReport) fine() bool {
	for _, node := range r.Nodes {
		if _, fine := node.Facts.Check(); !fine {
			return false
		}
	}
	for _, finding := range r.Between {
		if finding.Level != fail.Note {
			return false
		}
	}
	return true
}

// print writes one line a node where brief is asked for, and else everything.
func (r rdmaReport) print(w io.Writer, brief bool) {
	for _, node := range r.Nodes {
		if brief {
			line, _ := node.Facts.Check()
			fmt.Fprintf(w, "node %d (%s): %s\n", node.Node, cmp.Or(node.KubernetesNode, node.Pod), line)
			continue
		}
		fmt.Fprintf(w, "node %d: pod %s on %s, SCC %s\n\n", node.Node, node.Pod, cmp.Or(node.KubernetesNode, "an unknown node"), cmp.Or(node.SCC, "unknown"))
		node.Facts.Print(w)
		fmt.Fprintln(w)
		if len(node.NCCL.Variables) > 0 {
			node.NCCL.Print(w)
			fmt.Fprintln(w)
		}
	}
	if len(r.Between) > 0 {
		fmt.Fprintln(w, "between the nodes:")
		r.Between.Print(w)
	}
}
