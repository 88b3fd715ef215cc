// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/build"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// KueueManifests is the name of the file with Kueue's manifests in the folder of its program.
const KueueManifests = "manifests.yaml"

// Programs compiles the cluster's own programs unless the cache has them, and prints a line with the name and the folder of each set.
// A test that needs the control plane alone starts it by them. kueue is the version of Kueue to compile too, "" for none.
func Programs(ctx context.Context, kueue string, out io.Writer) error {
	source, err := build.FindSource()
	if err != nil {
		return err
	}
	cache, err := topology.CacheDir()
	if err != nil {
		return err
	}
	builder := build.Builder{Source: source, Cache: cache}
	sets := build.Sets
	if kueue != "" {
		sets = append(slices.Clone(sets), build.Kueue(kueue))
	}
	for _, set := range sets {
		folder, err := builder.Build(ctx, set, os.Stderr)
		if err != nil {
			return err
		}
		if set.Name == build.KueueName {
			if err := writeKueue(ctx, filepath.Join(source, set.Module), folder); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(out, set.Name, folder); err != nil {
			return err
		}
	}
	return nil
}

// writeKueue writes the manifests of the Kueue that a module requires into a folder. Their Deployment has no image.
func writeKueue(ctx context.Context, module, folder string) error {
	modules, err := moduleFolders(ctx, module, kueueModule)
	if err != nil {
		return err
	}
	manifests, err := renderKueue(modules[kueueModule], nil)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, KueueManifests), []byte(manifests), 0o644)
}
