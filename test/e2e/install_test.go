// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/initcluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/setup"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// command runs a command of mlenv and returns its output.
func (u trainer) command(cmd *cobra.Command, args ...string) (string, error) {
	u.Helper()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--kubeconfig="+kubeconfig, "--namespace="+u.namespace))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(u.Context())
	return out.String(), err
}

// installUninstallInit tests that preflight accepts the cluster file of mlenv init, that kubectl
// finds nothing to change after mlenv install, and that uninstall removes everything except a
// claim.
func installUninstallInit(u trainer) {
	file := filepath.Join(u.TempDir(), "found.yaml")
	if out, err := u.command(initcluster.Command(), "found", "--to="+file); err != nil {
		u.Fatalf("init: %v\n%s", err, out)
	}
	if _, err := u.command(initcluster.Command(), "found", "--to="+file); err == nil {
		u.Error("init overwrote a file")
	}
	content, err := os.ReadFile(file)
	if err != nil {
		u.Fatal(err)
	}
	u.mustContain(string(content), "- node-1 #", "class_rwx: nfs-csi", "per_node: 4", "default/eno5np0-network")
	out, err := u.command(preflight.Command(), "--cluster-file="+file, "--mode=tcp", "--image="+trainingImage, "--gpus-per-node=1")
	if err != nil {
		u.Errorf("preflight with the file that init wrote: %v\n%s", err, out)
	}
	u.install(file)
	u.applyText("{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: kept, labels: {ml-dev-env.github.io/environment: kept}}, " +
		"spec: {accessModes: [ReadWriteMany], storageClassName: nfs-csi, resources: {requests: {storage: 1Gi}}}}")
	for range 2 {
		if out, err = u.command(setup.UninstallCommand()); err != nil {
			u.Fatalf("uninstall: %v\n%s", err, out)
		}
		u.mustContain(out, "kept (1Gi)")
	}
	u.claimsAre("kept")
	if left := u.kubectl("get", "tasks,pipelines,roles,rolebindings,configmaps,serviceaccounts", "--selector="+install.PartLabel,
		"--output=name"); strings.TrimSpace(left) != "" {
		u.Errorf("uninstall left:\n%s", left)
	}
}
