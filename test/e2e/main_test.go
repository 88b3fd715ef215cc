// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// TestMain lets git call this program as its helper, because a scenario runs sync-repo in this process. The tests, and
// the programs that they start, use the registry's credentials of the local cluster. kubectl's cache of APIs is beside it: an earlier
// cluster at the same address had other ones.
func TestMain(m *testing.M) {
	git.Helper()
	for name, value := range map[string]string{"DOCKER_CONFIG": stateDir + "/docker", "KUBECACHEDIR": stateDir + "/kubectl-cache"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_, _ = dumps.WriteTo(os.Stdout)
	os.Exit(code)
}
