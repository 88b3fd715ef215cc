// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// applyPodMonitor applies the PodMonitor of an environment with new certificates; nil is none. No training fails for want of one.
func (p *provisioner) applyPodMonitor(ctx context.Context, monitor *unstructured.Unstructured, newCertificates bool) {
	if monitor == nil {
		return
	}
	monitors := p.clients.Objects.Resource(objects.PodMonitors()).Namespace(p.request.Namespace)
	var err error
	if newCertificates {
		_, err = kube.ApplyTo(ctx, monitors, monitor, kube.ApplyOptions{})
	} else {
		// Steps read no Secret, so only the PodMonitor shows that there is a certificate for Prometheus.
		_, err = monitors.Get(ctx, monitor.GetName(), metav1.GetOptions{})
	}
	lacks := fmt.Sprintf("Prometheus will not find the metrics of environment %s/%s", p.request.Namespace, p.request.Name)
	switch {
	case err == nil || ctx.Err() != nil:
	case kube.UnknownKind(err):
		p.log.Warn(fmt.Sprintf("%s: the cluster has no kind PodMonitor (%s): install prometheus-operator, or remove monitoring.pod_monitor "+
			"from the cluster file.", lacks, objects.PodMonitors().GroupVersion()))
	case apierrors.IsNotFound(err):
		p.log.Warn(fmt.Sprintf("%s: it was created without a PodMonitor, and the key that signs certificates is gone. Create it again: "+
			"mlenv down %s -n %s, then mlenv up.", lacks, p.request.Name, p.request.Namespace))
	case apierrors.IsForbidden(err):
		p.log.Warn(fmt.Sprintf("%s: the steps may not create a PodMonitor. mlenv install grants it for a cluster file with "+
			"monitoring.pod_monitor. (%v)", lacks, err))
	default:
		p.log.Warn(fmt.Sprintf("%s: %v", lacks, err))
	}
}
