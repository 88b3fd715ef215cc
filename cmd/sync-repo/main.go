// Command sync-repo brings one commit of a git repository to every node of an environment.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

func main() {
	git.Helper()
	step.Main(syncrepo.Command())
}
