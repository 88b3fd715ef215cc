//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// TestMain lets git call this program as its helper, because a scenario runs
// sync-repo in this process.
func TestMain(m *testing.M) {
	git.Helper()
	os.Exit(m.Run())
}
