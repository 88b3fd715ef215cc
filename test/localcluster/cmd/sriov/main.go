// SPDX-License-Identifier: Apache-2.0

// Command sriov is a stand-in for the SR-IOV CNI plugin.
package main

import "github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma/cni"

func main() { cni.Main() }
