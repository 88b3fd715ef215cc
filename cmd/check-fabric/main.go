// Command check-fabric proves that the network between an environment's nodes does what it should.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/checkfabric"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

func main() { step.Main(checkfabric.Command()) }
