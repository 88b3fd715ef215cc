// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// beginUse makes the request itself the last use of an environment that is released for want of use, and warns if the reaper cannot ask
// that environment. No request fails by it.
func (p *provisioner) beginUse(ctx context.Context, credentials agent.Credentials, newCertificates bool) {
	if p.holder.Run || p.options.MayIdle() == 0 {
		return
	}
	if !newCertificates {
		// Steps read no Secret, so only the ConfigMap shows that there is a certificate for the reaper.
		name := p.request.Names().UseConfig
		_, err := p.clients.Kube.CoreV1().ConfigMaps(p.request.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			p.log.Warn(fmt.Sprintf("Environment %s/%s is not released for want of use: it was created without a certificate for the reaper, and "+
				"the key that signs certificates is gone. Create it again: mlenv down %s -n %s, then mlenv up.", p.request.Namespace, p.request.Name,
				p.request.Name, p.request.Namespace))
			return
		}
	}
	set := p.environment().FirstNodes(p.request.Nodes, credentials)
	defer set.Close()
	if err := set.Each(ctx, func(ctx context.Context, client *agent.Client) error { return client.BeginUse(ctx) }); err != nil &&
		ctx.Err() == nil {
		p.log.Warn(fmt.Sprintf("The time without use of environment %s/%s was not started again: %v", p.request.Namespace, p.request.Name, err))
	}
}
