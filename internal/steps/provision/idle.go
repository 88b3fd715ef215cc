// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// beginUse makes the request itself the last use of an environment that is released for want of use. No request fails by it.
func (p *provisioner) beginUse(ctx context.Context, credentials agent.Credentials) {
	if p.holder.Run || p.options.MayIdle() == 0 {
		return
	}
	set := p.environment().FirstNodes(p.request.Nodes, credentials)
	defer set.Close()
	if err := set.Each(ctx, func(ctx context.Context, client *agent.Client) error { return client.BeginUse(ctx) }); err != nil &&
		ctx.Err() == nil {
		p.log.Warn(fmt.Sprintf("The time without use of environment %s/%s was not started again: %v", p.request.Namespace, p.request.Name, err))
	}
}
