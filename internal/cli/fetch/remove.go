// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Remove deletes paths, relative to the claim's top. Missing ones are no error. Errors: PodsNotReady, PermissionDenied.
func Remove(ctx context.Context, clients *kube.Clients, claim Claim, paths []string) (err error) {
	claim.write = true
	p, err := startPod(ctx, clients, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	const atOnce = 100 // they are part of a URL
	for some := range slices.Chunk(paths, atOnce) {
		if err := p.run(ctx, nil, io.Discard, append([]string{"remove", agent.Workspace}, some...)...); err != nil {
			return fmt.Errorf("deleting files of claim %s: %w", claim.Name, err)
		}
	}
	return nil
}
