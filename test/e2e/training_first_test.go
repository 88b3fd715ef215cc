// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// threeCommands is the first day in an empty namespace: no registry, no container tool, and nothing to compile. The flags name images
// that the local cluster has in place of those that it cannot pull.
func threeCommands(u trainer) {
	u.user = newUserIn(u.T, u.namespace+"-new")
	dir := u.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "own.py"), []byte("print('trained', flush=True)\n"), 0o600); err != nil {
		u.Fatal(err)
	}
	base := "--base=" + registryHost + "/base/git:latest"
	began := time.Now()
	out, _ := u.says(dir, command.Done, "init", "mine")
	u.mustContain(out, "next: check the guesses, then\n  mlenv install mine.yaml\n")
	_, problems := u.says(dir, command.Failed, "install", "mine.yaml", "--program=own.py")
	u.mustContain(problems, "it is not a Go program",
		"next: name the program of a release for Linux: mlenv install FILE --program=mlenv-linux-amd64")
	out, _ = u.says(dir, command.Done, "install", "mine.yaml", "--dry-run")
	u.mustContain(out, "task/mlenv-train created", "nothing was changed")
	if left := u.kubectl("get", "buildconfigs,imagestreams,tasks", "--output=name"); left != "" {
		u.Errorf("a refused install and a dry run left %s", left)
	}
	out, problems = u.says(dir, command.Done, "install", "mine.yaml", base)
	u.mustContain(out, "task/mlenv-train created")
	u.mustContain(problems, "Built "+registryHost+"/"+u.namespace+"/ml-dev-env@sha256:")
	installed := time.Since(began)
	out, _ = u.says(dir, command.Done, "run", ".", "own.py", "--nodes=2", "--gpus-per-node=1", "--image="+trainingImage, "--launcher=command",
		"--check-fabric=false")
	u.mustContain(out, "[0 -] trained", "[1 -] trained", "succeeded")
	u.Logf("installed after %s, trained after %s", installed.Round(time.Second), time.Since(began).Round(time.Second))

	_, problems = u.says(dir, command.Done, "install", "mine.yaml", base)
	u.mustContain(problems, "Nothing is built: ")
	out, _ = u.says(dir, command.Done, "uninstall", "--receipts")
	u.mustContain(out, "buildconfig/ml-dev-env-mlenv-steps deleted", "imagestream/ml-dev-env deleted")
	if left := u.kubectl("get", "tasks,pipelines,buildconfigs,imagestreams,leases,statefulsets", "--output=name"); left != "" {
		u.Errorf("after mlenv uninstall: %s", left)
	}
}
