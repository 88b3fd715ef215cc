// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// blockedTraffic finds network policies that block traffic between the nodes. Ranks listen on ports that the kernel
// chooses, so all ports must be open. One policy that allows it is enough. Policies do not affect RDMA, but ranks meet over TCP.
func (e *examination) blockedTraffic() {
	if len(e.nodes) < 2 || e.cluster.StatefulSet == nil {
		return
	}
	own := labels.Set(e.cluster.StatefulSet.Spec.Template.Labels)
	var names []string
	for _, direction := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
		var about []string
		allowed := false
		for _, p := range e.policies {
			if selects(&p.Spec.PodSelector, own) && slices.Contains(p.Spec.PolicyTypes, direction) {
				about = append(about, p.Name)
				allowed = allowed || allows(p.Spec, direction, own)
			}
		}
		// Without a policy for the direction everything is allowed.
		if !allowed {
			names = append(names, about...)
		}
	}
	if names == nil {
		return
	}
	slices.Sort(names)
	names = slices.Compact(names)
	e.found(TrafficBarred, "environment "+e.env.Name,
		fmt.Sprintf("network policies (%s) apply to the pods, and none of them lets the environment's pods talk to each other on all ports",
			strings.Join(names, ", ")),
		fmt.Sprintf("oc get networkpolicy %s -n %s -o yaml; add one whose podSelector, ingress.from and egress.to are the label %s=%s",
			names[0], e.env.Namespace, objects.EnvironmentLabel, e.env.Name))
}

// allows reports whether a rule admits pods with these labels on all ports. Ranges of addresses and namespaces may
// include them, and an uncertain case is not a finding.
func allows(spec networkingv1.NetworkPolicySpec, direction networkingv1.PolicyType, own labels.Set) bool {
	passes := func(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) bool {
		return len(ports) == 0 && (len(peers) == 0 || slices.ContainsFunc(peers, func(peer networkingv1.NetworkPolicyPeer) bool {
			return peer.IPBlock != nil || peer.NamespaceSelector != nil || selects(peer.PodSelector, own)
		}))
	}
	if direction == networkingv1.PolicyTypeIngress {
		return slices.ContainsFunc(spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool { return passes(r.From, r.Ports) })
	}
	return slices.ContainsFunc(spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool { return passes(r.To, r.Ports) })
}

func selects(selector *metav1.LabelSelector, own labels.Set) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(own)
}
