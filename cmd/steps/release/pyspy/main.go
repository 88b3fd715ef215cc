// SPDX-License-Identifier: Apache-2.0

// Command pyspy writes py-spy as DIR/OS-ARCHITECTURE/py-spy, and its licence below DIR/licenses.
//
// usage: pyspy DIR PLATFORM..., as in pyspy cmd/steps/kodata linux/amd64
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/install/pyspy"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: pyspy DIR PLATFORM...")
		os.Exit(2)
	}
	dir := os.Args[1]
	for _, platform := range os.Args[2:] {
		programs := filepath.Join(dir, strings.ReplaceAll(platform, "/", "-"))
		if err := pyspy.Write(context.Background(), programs, filepath.Join(dir, "licenses"), platform); err != nil {
			fmt.Fprintf(os.Stderr, "fetching py-spy for %s: %v\n", platform, err)
			os.Exit(1)
		}
	}
}
