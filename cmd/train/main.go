// Command train launches a training on all nodes of an environment and follows it.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

func main() { step.Main(train.Command()) }
