// SPDX-License-Identifier: Apache-2.0

// Command openshift-apiserver is a stand-in for OpenShift's build and image
// APIs and the controllers behind them.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildcontroller"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
)

func main() {
	if err := command().ExecuteContext(genericapiserver.SetupSignalContext()); err != nil {
		fmt.Fprintln(os.Stderr, "openshift-apiserver:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var config buildapi.Config
	var controllers buildcontroller.Config
	cmd := &cobra.Command{
		Use: "openshift-apiserver", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return buildapi.Run(cmd.Context(), config, func(ctx context.Context, clients buildapi.Clients) error {
				controllers.Registry, controllers.Proxies = config.Registry, host.Proxies(os.Getenv)
				return buildcontroller.Run(ctx, clients, controllers)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&config.Address, "address", "", "HOST:PORT to listen on")
	f.StringVar(&config.CertFile, "cert", "", "serving certificate")
	f.StringVar(&config.KeyFile, "key", "", "its key")
	f.StringVar(&config.EtcdURL, "etcd", "", "etcd's URL")
	f.StringVar(&config.EtcdCA, "etcd-ca", "", "authority of etcd's certificate")
	f.StringVar(&config.EtcdCert, "etcd-cert", "", "client certificate for etcd")
	f.StringVar(&config.EtcdKey, "etcd-key", "", "its key")
	f.StringVar(&config.Kubeconfig, "kubeconfig", "", "kubeconfig by which callers are checked and pods made")
	f.StringVar(&config.Registry, "registry", "", "HOST:PORT of the registry that image streams live in")
	f.DurationVar(&controllers.SecretDelay, "pull-secret-delay", 0, "time from a service account's creation until it gets its pull secret; "+
		"0 is a random one")
	f.StringVar(&controllers.Image, "builder-image", "", "image of the build pods' containers")
	return cmd
}
