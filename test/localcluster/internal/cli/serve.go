// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gitserver"
	gpu "github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu/plugin"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/image"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/openshift"
	rdma "github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma/plugin"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/registry"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/storage"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// serveCommand returns the command with the components that are part of this program.
func serveCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Run a component of this program; up starts them by this", Hidden: true}
	cmd.AddCommand(serveRegistry(), serveGit(), serveOpenShift(), serveStorage(), serveCSI(), serveGPU(), serveRDMA())
	return cmd
}

func serveRegistry() *cobra.Command {
	var store, kubeconfig string
	cmd := &cobra.Command{Use: "registry", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		s, err := image.OpenStore(store)
		if err != nil {
			return err
		}
		client, err := clientFor(kubeconfig)
		if err != nil {
			return err
		}
		return registry.Serve(cmd.Context(), topology.RegistryHost, topology.State("registry"), s, registry.ClusterRights{Client: client})
	}}
	cmd.Flags().StringVar(&store, "store", "", "OCI layout of the cluster's own images")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig for checking the rights of service accounts")
	return cmd
}

func serveGit() *cobra.Command {
	config := gitserver.Config{Dir: topology.State("git"), HTTPS: topology.ControlIP + ":443", SSH: topology.ControlIP + ":22"}
	cmd := &cobra.Command{Use: "git", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return gitserver.Serve(cmd.Context(), config)
	}}
	cmd.Flags().StringVar(&config.CertFile, "cert", "", "serving certificate")
	cmd.Flags().StringVar(&config.KeyFile, "key", "", "its key")
	return cmd
}

func serveOpenShift() *cobra.Command {
	config := openshift.Config{Address: topology.AdmissionAddress}
	var kubeconfig string
	cmd := &cobra.Command{Use: "openshift", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		access, err := accessBy(kubeconfig)
		if err != nil {
			return err
		}
		clients, err := openshift.NewClients(access)
		if err != nil {
			return err
		}
		return openshift.Run(cmd.Context(), clients, config)
	}}
	cmd.Flags().StringVar(&config.CertFile, "cert", "", "serving certificate")
	cmd.Flags().StringVar(&config.KeyFile, "key", "", "its key")
	cmd.Flags().StringVar(&config.ClientCA, "client-ca", "", "authority of the API server's client certificate")
	cmd.Flags().StringSliceVar(&config.Without, "without", nil, "constraints that this cluster lacks")
	cmd.Flags().StringVar(&config.CABundle, "ca-bundle", "", "certificates that the cluster trusts")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig")
	return cmd
}

func serveStorage() *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{Use: "storage", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		client, err := clientFor(kubeconfig)
		if err != nil {
			return err
		}
		return storage.RunController(cmd.Context(), client, topology.State("volumes"))
	}}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig")
	return cmd
}

func serveCSI() *cobra.Command {
	var node string
	cmd := &cobra.Command{Use: "csi", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return storage.RunNode(cmd.Context(), node, topology.State("volumes"))
	}}
	cmd.Flags().StringVar(&node, "node", "", "the node's name")
	return cmd
}

func serveGPU() *cobra.Command {
	var node string
	cmd := &cobra.Command{Use: "gpu", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return gpu.Run(cmd.Context(), gpu.Config{
			StateDir:  topology.State("nodes", node, "gpu"),
			DeviceDir: topology.State("nodes", node, "dev"),
			RDMADir:   topology.RDMADir(node),
			SMI:       topology.State("in-pod", "nvidia-smi"),
		})
	}}
	cmd.Flags().StringVar(&node, "node", "", "the node's name")
	return cmd
}

func serveRDMA() *cobra.Command {
	var node string
	cmd := &cobra.Command{Use: "rdma", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return rdma.Run(cmd.Context(), rdma.Config{
			Node:   topology.Netns{Name: node},
			GPUDir: topology.State("nodes", node, "gpu"),
			Dir:    topology.RDMADir(node),
		})
	}}
	cmd.Flags().StringVar(&node, "node", "", "the node's name")
	return cmd
}

func clientFor(kubeconfig string) (kubernetes.Interface, error) {
	config, err := accessBy(kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

func accessBy(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 100, 200
	return config, nil
}
