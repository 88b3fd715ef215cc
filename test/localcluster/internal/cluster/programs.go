// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/build"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Programs compiles the cluster's own programs unless the cache has them, and prints a line with the name and the folder of each set.
// A test that needs the control plane alone starts it by them.
func Programs(ctx context.Context, out io.Writer) error {
	source, err := build.FindSource()
	if err != nil {
		return err
	}
	cache, err := topology.CacheDir()
	if err != nil {
		return err
	}
	builder := build.Builder{Source: source, Cache: cache}
	for _, set := range build.Sets {
		folder, err := builder.Build(ctx, set, os.Stderr)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, set.Name, folder); err != nil {
			return err
		}
	}
	return nil
}
