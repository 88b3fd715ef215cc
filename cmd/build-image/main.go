// Command build-image builds a training image on the cluster, unless it is there.
package main

import (
	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

func main() { step.Main(buildimage.Command(mldevenv.Images())) }
