// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// monitoring checks whether provision can create the PodMonitor that the cluster file asks for. A training does not need it.
func (p *probe) monitoring(ctx context.Context) []Check {
	const name = "monitoring"
	if !p.file.Monitoring.PodMonitor {
		return nil
	}
	if group := objects.PodMonitors().Group; !p.groups[group] {
		return []Check{newCheck(name, Warning, "ask an administrator for prometheus-operator, or leave monitoring.pod_monitor out",
			"the cluster has no PodMonitors (API group %s), so Prometheus will not find the metrics", group)}
	}
	user := kube.Account(p.Request.Namespace, p.ServiceAccount)
	if p.ServiceAccount == "" {
		user = kube.WhoAsks(ctx, p.Clients.Kube)
	}
	check := p.rights(ctx, name, user, install.MonitoringRules(), Warning)
	if check.Status == OK {
		check.Seen = fmt.Sprintf("%s may create PodMonitors", user)
	}
	return []Check{check}
}
