// Command preflight tells whether an environment can be had, and whether over RDMA.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

func main() { step.Main(preflight.Command()) }
