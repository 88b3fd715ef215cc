// Command teardown writes a run's receipt and gives its environment back.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

func main() { step.Main(teardown.Command()) }
