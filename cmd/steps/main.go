// SPDX-License-Identifier: Apache-2.0

// Command steps is the program of the steps image.
package main

import (
	"github.com/ml-dev-env/ml-dev-env/internal/cli/stepsprogram"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

func main() {
	git.Helper()
	stepsprogram.Main()
}
