// SPDX-License-Identifier: Apache-2.0

// Command localcluster brings up a real Kubernetes with real Tekton on one
// Linux machine, and takes it down again.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/cli"
)

func main() { os.Exit(cli.Main()) }
