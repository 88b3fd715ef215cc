// Command reap gives back the environments of a namespace that nobody holds any more.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/reaper"
)

func main() { step.Main(reaper.Command()) }
