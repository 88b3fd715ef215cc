// Command mlenv is the command line of ml-dev-env.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/program"
	"github.com/ml-dev-env/ml-dev-env/internal/cli"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

func main() {
	git.Helper()
	if program.Is(os.Args[0]) { // as on the nodes of a local run
		os.Exit(program.Main(os.Args, os.Environ(), os.Stdout, os.Stderr))
	}
	os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
}
