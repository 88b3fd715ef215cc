// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// injected tests that errors of the API server, which a proxy injects into every fourth request by a seed, do not change how the steps of
// a run end.
func injected(u trainer) {
	const seed, every = 20, 4
	direct, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		u.Fatal(err)
	}
	direct.NextProtos = []string{"http/1.1"} // HTTP/2 has no connections that are upgraded
	address, failed := apitest.Proxy(u.T, direct, seed, every)
	through := filepath.Join(u.TempDir(), "kubeconfig")
	if err := os.WriteFile(through, []byte(apitest.Kubeconfig(address)), 0o600); err != nil {
		u.Fatal(err)
	}
	for _, each := range []struct {
		command *cobra.Command
		args    []string
	}{
		{preflight.Command(), []string{"--cluster-file=" + u.clusterFile(), "--nodes=2", "--gpus-per-node=1"}},
		{provision.Command(), []string{"--cluster-file=" + u.clusterFile(), "--steps-image=" + u.steps, "--nodes=2", "--gpus-per-node=1"}},
		{syncrepo.Command(), []string{"--repo-url=" + strings.Replace(u.repo, gitHost, gitAddress, 1), "--ca-file=" + stateDir +
			"/ca-bundle.crt"}},
		{train.Command(), []string{"--script=e2e/quick.sh", "--launcher=command"}},
		{teardown.Command(), nil},
	} {
		var out bytes.Buffer
		args := append([]string{"--kubeconfig=" + through, "--namespace=" + u.namespace}, each.args...)
		if code := command.Run(u.Context(), each.command, args, &out, &out); code != command.Done {
			u.Fatalf("%s ended with %d after %d faults of seed %d:\n%s", strings.Fields(each.command.Use)[0], code, failed(), seed, out.String())
		}
	}
	if failed() == 0 {
		u.Errorf("seed %d injected no fault", seed)
	}
	u.nothingLeft()
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
}
