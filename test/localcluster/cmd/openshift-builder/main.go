// SPDX-License-Identifier: Apache-2.0

// Command openshift-builder runs in the containers of a build's pod.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/builder"
)

func main() { os.Exit(builder.Main(os.Args[1:])) }
