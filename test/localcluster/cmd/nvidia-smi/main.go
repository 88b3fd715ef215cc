// SPDX-License-Identifier: Apache-2.0

// Command nvidia-smi is a stand-in for NVIDIA's, for containers with stand-in GPUs.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
)

func main() { os.Exit(gpu.RunSMI(os.Args[1:])) }
