// Command check-fabric proves that the network between an environment's nodes does what it should.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/checkfabric"
)

func main() { step.Main(checkfabric.Command()) }
