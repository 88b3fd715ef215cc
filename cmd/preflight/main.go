// Command preflight tells whether an environment can be had, and whether over RDMA.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/preflight"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

func main() { step.Main(preflight.Command()) }
