// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// leaveOut excludes Kubernetes nodes that refuse pods for a fault of their GPUs from the StatefulSet: the scheduler would choose them
// again and again. It returns the findings that remain. Those of a node that has to stay have the reason in their advice.
func (p *provisioner) leaveOut(ctx context.Context, findings []fail.Finding, set *appsv1.StatefulSet) ([]fail.Finding, error) {
	spec := &set.Spec.Template.Spec
	for i := range findings {
		f := &findings[i]
		_, excluded := objects.Placement(spec)
		if f.Reason != fail.GPUMissing || f.Host == "" || slices.Contains(excluded, f.Host) {
			continue
		}
		if err := objects.MayExclude(set, f.Host, p.request.Nodes); err != nil {
			f.Next += fmt.Sprintf(" (provision does not do so by itself: %v)", err)
			continue
		}
		objects.Exclude(spec, f.Host)
		if err := kube.Apply(ctx, p.clients.Kube, set); err != nil {
			return nil, err
		}
		p.request.ExcludeNodes = append(p.request.ExcludeNodes, f.Host)
		p.log.Warn(fmt.Sprintf("Kubernetes node %s is left out from now on: %s.", f.Host, f.Seen), "event", "node-left-out", "kubernetesNode",
			f.Host, "reason", f.Reason)
	}
	_, excluded := objects.Placement(spec)
	return slices.DeleteFunc(findings, func(f fail.Finding) bool { return f.Host != "" && slices.Contains(excluded, f.Host) }), nil
}
