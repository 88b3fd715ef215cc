//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// TestMain lets git call this program as its helper, because a scenario runs sync-repo in this process. The tests, and
// the programs that they start, use the registry's credentials of the local cluster.
func TestMain(m *testing.M) {
	git.Helper()
	if err := os.Setenv("DOCKER_CONFIG", stateDir+"/docker"); err != nil {
		panic(err)
	}
	code := m.Run()
	_, _ = dumps.WriteTo(os.Stdout)
	os.Exit(code)
}
