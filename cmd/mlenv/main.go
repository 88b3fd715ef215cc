// SPDX-License-Identifier: Apache-2.0

// Command mlenv is the command line of ml-dev-env.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/cli"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

func main() {
	git.Helper()
	byName()
	os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
}
