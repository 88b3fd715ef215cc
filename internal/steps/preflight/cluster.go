// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"errors"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func (p *probe) cluster(ctx context.Context) []Check {
	const name = "cluster"
	if p.Clients.Config == nil {
		return nil
	}
	err := kube.CheckCluster(ctx, p.Clients.Config, p.file.Cluster.API)
	switch {
	case errors.Is(err, kube.ErrClusterUnknown):
		return []Check{newCheck(name, Unknown, "", "%s", oneLine(err.Error()))}
	case err != nil:
		return []Check{blockedBy(name, err)}
	}
	return []Check{newCheck(name, OK, "", "%s is this cluster", p.file.Cluster.API)}
}

// API groups that some clusters lack.
const (
	tektonGroup     = "tekton.dev"
	buildGroup      = "build.openshift.io"
	imageGroup      = "image.openshift.io"
	routeGroup      = "route.openshift.io"
	securityGroup   = "security.openshift.io"
	attachmentGroup = "k8s.cni.cncf.io"
)

// listGroups waits no longer than ctx, which the discovery client does not take.
func (p *probe) listGroups(ctx context.Context) (map[string]bool, error) {
	var list *metav1.APIGroupList
	listed := make(chan error, 1)
	go func() {
		var err error
		list, err = p.Clients.Kube.Discovery().ServerGroups()
		listed <- err
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case err := <-listed:
		if err != nil {
			return nil, err
		}
	}
	found := map[string]bool{}
	for _, group := range list.Groups {
		found[group.Name] = true
	}
	return found, nil
}

// apiGroups checks the API groups that the request needs in addition to Kubernetes' own.
func (p *probe) apiGroups(context.Context) []Check {
	const name = "API groups"
	const finished = "name a finished image: --image, or image.name in the cluster file"
	var missing []Check
	var present []string
	for _, need := range []struct {
		group  string
		status Status
		needed bool
		reason fail.Reason
		lack   string
		fix    string
	}{
		{tektonGroup, Warning, true, "", "steps can only be run by hand", "install Tekton (on OpenShift the operator Red Hat OpenShift " +
			"Pipelines)"},
		{buildGroup, Blocked, p.building, fail.BuildUnavailable, "no image can be built", finished},
		{imageGroup, Blocked, p.building, fail.BuildUnavailable, "a built image cannot be stored", finished},
		{routeGroup, Blocked, p.Request.Routes, fail.InvalidInput, "no Routes to services can be created",
			"leave --routes out, and use oc port-forward"},
		{attachmentGroup, BlockedRDMA, p.rdma && len(p.file.Network.RDMA.Attachments) > 0, "",
			"pods cannot have the attachments of network.rdma.attachments", "install Multus (OpenShift has it; the SR-IOV Network Operator " +
				"creates the attachments)"},
		{securityGroup, OK, false, "", "pod security levels decide what pods may do", ""},
	} {
		switch {
		case p.groups[need.group]:
			present = append(present, need.group)
		case need.needed:
			missing = append(missing, newCheck(name, need.status, need.fix, "there is no %s: %s", need.group, need.lack).because(need.reason))
		case need.group == securityGroup:
			present = append(present, "without "+need.group+" ("+need.lack+")")
		}
	}
	if len(present) == 0 {
		return missing
	}
	slices.Sort(present)
	return slices.Insert(missing, 0, newCheck(name, OK, "", "%s", strings.Join(present, ", ")))
}

// shared reports whether the nodes mount the same claims.
func (p *probe) shared() bool {
	return p.Request.Storage == cluster.SharedStorage || p.Request.Storage == cluster.AutoStorage && p.file.Storage.ClassRWX != ""
}
