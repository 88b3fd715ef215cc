// SPDX-License-Identifier: Apache-2.0

// Package cli is the localcluster command line.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/build"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/process"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/profile"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// errNotUsable makes the exit code 1. The command has already printed the reason.
var errNotUsable = errors.New("the cluster cannot be used")

// Main runs the command line and returns the exit code: 0 done, 1 failed, 2 wrong usage.
func Main() int {
	// What the programs and images create must not depend on the user's shell.
	syscall.Umask(0o022)
	for name, value := range host.Proxies(os.Getenv) {
		_ = os.Setenv(name, value) // fails for invalid names alone
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	usage := true
	root := command(func() { usage = false })
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNotUsable):
		return 1
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "localcluster: interrupted; run localcluster up again to continue, or down to clean up")
		return 1
	}
	fmt.Fprintln(os.Stderr, "localcluster:", err)
	if usage {
		return 2
	}
	return 1
}

// command returns the command tree. It calls parsed after it has accepted the arguments.
func command(parsed func()) *cobra.Command {
	root := &cobra.Command{
		Use:           "localcluster",
		Short:         "A real Kubernetes with real Tekton on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			parsed()
			if cmd.Parent() != nil && cmd.Parent().Name() != "serve" {
				// Messages of libraries belong in a server's log, but not on a terminal.
				klog.SetLogger(logr.Discard())
			}
		},
	}
	root.AddCommand(upCommand(), downCommand(), statusCommand(), kubeconfigCommand(), logsCommand(), loadCommand(), nodeCommand(),
		programsCommand(), enterCommand(), serveCommand())
	return root
}

func upCommand() *cobra.Command {
	var flags cluster.Options
	var tekton, networks bool
	var extras cluster.Extras
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the cluster up, or repair it",
		Long: `Bring the cluster up, or repair the running one: up starts again what has
died, and recreates what a reboot removed. The first time it compiles
Kubernetes, Tekton and tkn and builds the images, which takes 10 to 30 minutes
on two cores; after that they come from the cache. --tekton=false, --tkn=false,
--networks=false and --training-image=false leave parts out, which a later up adds.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags.NoTekton, flags.NoNetworks = !tekton, !networks
			options, err := chosenOptions(cmd, flags)
			if err != nil {
				return err
			}
			options.Faults, err = chosenFaults(cmd, "gpu-fault", options.Faults, gpu.ParseNodeFault)
			if err != nil {
				return err
			}
			options.RDMAFaults, err = chosenFaults(cmd, "rdma-fault", options.RDMAFaults, rdma.ParseNodeFault)
			if err != nil {
				return err
			}
			return cluster.Up(cmd.Context(), options, extras, os.Stdout)
		},
	}
	cmd.Flags().IntVar(&flags.Nodes, "nodes", cluster.DefaultOptions.Nodes, "number of nodes, 1 to 8")
	cmd.Flags().IntVar(&flags.GPUs, "gpus", cluster.DefaultOptions.GPUs, "stand-in GPUs of each node, 0 to 8")
	cmd.Flags().StringVar(&flags.Profile, "profile", "",
		"be like another cluster: "+strings.Join(profile.Names(), ", ")+"; "+noProfile+" ends it. Works on a running cluster")
	cmd.Flags().DurationVar(&flags.PullSecretDelay, "pull-secret-delay", 0,
		"time from a service account's creation until it gets its pull secret; 0 is a random time of 0.5 to 5 s for each. Works on a running "+
			"cluster")
	cmd.Flags().BoolVar(&tekton, "tekton", true, "Tekton; a later up adds it if this one does not, and none takes it away")
	cmd.Flags().BoolVar(&flags.NewestTekton, "newest-tekton", false, "the newest Tekton in place of the long-term release, until down")
	cmd.Flags().BoolVar(&networks, "networks", true, "Multus and Whereabouts, which attach NICs to pods; a later up adds them if this one "+
		"does not, and none takes them away")
	cmd.Flags().BoolVar(&extras.Tkn, "tkn", true, "tkn, Tekton's command line; a later up adds it if this one does not")
	cmd.Flags().BoolVar(&extras.TrainingImage, "training-image", true, "make image training, which the end-to-end tests train in; a later "+
		"up makes it if this one does not")
	cmd.Flags().BoolVar(&flags.Triggers, "triggers", false, "Tekton Triggers too, which the first time compiles. Works on a running "+
		"cluster, and stays until down")
	cmd.Flags().StringVar(&flags.Kueue, "kueue", "", "Kueue too, "+strings.Join(build.KueueVersions, ", ")+
		", which the first time compiles. Works on a running cluster, and stays until down")
	cmd.Flags().Lookup("kueue").NoOptDefVal = build.KueueVersions[0]
	cmd.Flags().BoolVar(&flags.Peers, "peers", false, "Kubeflow Trainer with JobSet and MPI Operator too, to compare with, and image "+
		"training-peers. Works on a running cluster, and stays until down")
	cmd.Flags().StringArray("gpu-fault", nil,
		"a faulty GPU: NODE:INDEX=missing, =throttled, =ecc, =no-nvlink or =xid-NUMBER (repeatable); none clears them. Works on a running "+
			"cluster")
	cmd.Flags().StringArray("rdma-fault", nil,
		"a faulty NIC: NODE:NIC=down, =rate-GBPS, =pcie-4, =no-info or =empty-info (repeatable); none clears them. Works on a running cluster")
	return cmd
}

// noProfile is the value of --profile that removes the profile.
const noProfile = "none"

// chosenOptions returns the options of the flags that are set. Other options come from the running cluster or, without
// a cluster, from the defaults.
func chosenOptions(cmd *cobra.Command, flags cluster.Options) (cluster.Options, error) {
	options, ok, err := cluster.Stored()
	if err != nil {
		return options, err
	}
	if !ok {
		options = cluster.DefaultOptions
	}
	if cmd.Flags().Changed("nodes") {
		options.Nodes = flags.Nodes
	}
	if cmd.Flags().Changed("profile") {
		if options.Profile = flags.Profile; options.Profile == noProfile {
			options.Profile = ""
		}
	}
	if cmd.Flags().Changed("gpus") {
		options.GPUs = flags.GPUs
	}
	if cmd.Flags().Changed("pull-secret-delay") {
		options.PullSecretDelay = flags.PullSecretDelay
	}
	if cmd.Flags().Changed("newest-tekton") {
		options.NewestTekton = flags.NewestTekton
	}
	if cmd.Flags().Changed("triggers") {
		options.Triggers = flags.Triggers
	}
	if cmd.Flags().Changed("kueue") {
		options.Kueue = flags.Kueue
	}
	if cmd.Flags().Changed("peers") {
		options.Peers = flags.Peers
	}
	// A cluster with Tekton or the networks keeps them.
	options.NoTekton = flags.NoTekton && (!ok || options.NoTekton)
	options.NoNetworks = flags.NoNetworks && (!ok || options.NoNetworks)
	return options, nil
}

// chosenFaults returns the faults of the flag or, if it is not set, the present faults.
func chosenFaults[F any](cmd *cobra.Command, flag string, there []F, parse func(string) (F, error)) ([]F, error) {
	if !cmd.Flags().Changed(flag) {
		return there, nil
	}
	texts, err := cmd.Flags().GetStringArray(flag)
	if err != nil {
		return nil, err
	}
	var faults []F
	var problems []error
	for _, text := range texts {
		if text == "none" {
			continue
		}
		fault, err := parse(text)
		problems = append(problems, err)
		faults = append(faults, fault)
	}
	return faults, errors.Join(problems...)
}

func downCommand() *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove the cluster and everything it put on the machine but the cache",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cluster.Down(cmd.Context(), purge, os.Stdout)
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the cache of programs and images too")
	return cmd
}

func statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the components and where everything is; exit 1 if the cluster cannot be used",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			usable, err := cluster.Status(cmd.Context(), os.Stdout)
			if err == nil && !usable {
				return errNotUsable
			}
			return err
		},
	}
}

func kubeconfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Print the path of the administrator's kubeconfig",
		Example: "  export KUBECONFIG=$(localcluster kubeconfig)",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := os.Stat(topology.Kubeconfig()); err != nil {
				return errors.New("there is no cluster; localcluster up makes one")
			}
			fmt.Println(topology.Kubeconfig())
			return nil
		},
	}
}

func programsCommand() *cobra.Command {
	var kueue string
	cmd := &cobra.Command{
		Use:   "programs",
		Short: "Compile the cluster's programs, and print their folders; no cluster is started",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cluster.Programs(cmd.Context(), kueue, os.Stdout) },
	}
	cmd.Flags().StringVar(&kueue, "kueue", "", "a version of Kueue to compile too, with "+cluster.KueueManifests+" next to its program")
	return cmd
}

func logsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "logs COMPONENT",
		Short:   "Print the log of a component, as status names it",
		Example: "  localcluster logs kubelet@node-1",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return cluster.Logs(args[0], os.Stdout) },
	}
}

func loadCommand() *cobra.Command {
	var as string
	cmd := &cobra.Command{
		Use:   "load IMAGE",
		Short: "Push an image archive or an OCI layout folder to the cluster's registry and print its reference",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			reference, err := cluster.Load(cmd.Context(), args[0], as)
			if err != nil {
				return err
			}
			fmt.Println(reference)
			return nil
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "the image's name and tag in the registry (default: the file's name)")
	return cmd
}

func nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Break a node, and repair it"}
	add := func(use, short string, do func(context.Context, string) error) {
		cmd.AddCommand(&cobra.Command{
			Use: use + " NAME", Short: short, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return do(cmd.Context(), args[0]) },
		})
	}
	add("stop", "End everything that runs on the node at once, as a loss of power does", func(_ context.Context, name string) error {
		return cluster.StopNode(name)
	})
	add("start", "Start a stopped node; any up does so too", func(ctx context.Context, name string) error {
		return cluster.StartNode(ctx, name, os.Stdout)
	})
	add("cut", "Cut the node off the cluster's network; what runs on it continues", cluster.CutNode)
	add("join", "Connect the node again", cluster.JoinNode)
	return cmd
}

func enterCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "enter COMPONENT",
		Short:  "Become a component; up starts them by this",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return process.Enter(args[0]) },
	}
}
