// SPDX-License-Identifier: Apache-2.0

// Command ib_write_bw is a stand-in for perftest's, for containers with stand-in RDMA devices.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/perftest"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
)

func main() {
	os.Exit(perftest.Run(os.Args[1:], os.Getenv(rdma.SysRootVariable), os.Stdout, os.Stderr))
}
