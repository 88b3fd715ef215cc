// Command provision creates a training environment and waits until it can be used.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
)

func main() { step.Main(provision.Command()) }
