// Command provision creates a training environment and waits until it can be used.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

func main() { step.Main(provision.Command()) }
