package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// cluster compares cluster.api of the cluster file with where the question goes.
func (p *probe) cluster(ctx context.Context) []Check {
	check := Check{Name: "cluster", Verdict: OK, Seen: p.file.Cluster.API + " is this cluster"}
	if p.Clients.Config == nil {
		return nil
	}
	err := kube.CheckCluster(ctx, p.Clients.Config, p.file.Cluster.API)
	switch {
	case errors.Is(err, kube.ErrClusterUnknown):
		check.Verdict, check.Seen = Unknown, oneLine(err.Error())
	case err != nil:
		check.Verdict, check.Seen, check.Fix, check.Reason = Blocked, oneLine(err.Error()), fail.NextOf(err), fail.ReasonOf(err)
	}
	return []Check{check}
}

// API groups that are not every cluster's.
const (
	tektonGroup     = "tekton.dev"
	buildGroup      = "build.openshift.io"
	imageGroup      = "image.openshift.io"
	routeGroup      = "route.openshift.io"
	securityGroup   = "security.openshift.io"
	attachmentGroup = "k8s.cni.cncf.io"
)

// listGroups waits no longer than ctx, which discovery knows nothing of.
func (p *probe) listGroups(ctx context.Context) (map[string]bool, error) {
	groups, failed := make(chan map[string]bool, 1), make(chan error, 1)
	go func() {
		list, err := p.Clients.Kube.Discovery().ServerGroups()
		if err != nil {
			failed <- err
			return
		}
		found := map[string]bool{}
		for _, group := range list.Groups {
			found[group.Name] = true
		}
		groups <- found
	}()
	select {
	case found := <-groups:
		return found, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// apiGroups are those that the request needs beyond Kubernetes' own.
func (p *probe) apiGroups(context.Context) []Check {
	const name = "API groups"
	var found []Check
	var there []string
	for _, need := range []struct {
		group   string
		verdict Verdict
		needed  bool
		reason  fail.Reason
		lack    string
		fix     string
	}{
		{tektonGroup, Warning, true, "", "steps run by hand alone", "install Tekton (on OpenShift the operator Red Hat OpenShift Pipelines)"},
		{buildGroup, Blocked, p.building, fail.BuildUnavailable, "no image can be built", "name a finished image: --image, or image.name in the cluster file"},
		{imageGroup, Blocked, p.building, fail.BuildUnavailable, "a built image has no place", "name a finished image: --image, or image.name in the cluster file"},
		{routeGroup, Blocked, p.Request.Routes, fail.InvalidInput, "no Routes to services can be made", "leave --routes out, and use oc port-forward"},
		{securityGroup, OK, false, "", "pod security levels decide what pods may do", ""},
		{attachmentGroup, BlockedRDMA, p.rdma && len(p.file.Network.RDMA.Attachments) > 0, "", "pods cannot have the attachments of network.rdma.attachments", "install Multus (on OpenShift it is there; the SR-IOV Network Operator makes the attachments)"},
	} {
		switch {
		case p.groups[need.group]:
			there = append(there, need.group)
		case need.needed:
			found = append(found, Check{Name: name, Verdict: need.verdict, Seen: fmt.Sprintf("there is no %s: %s", need.group, need.lack), Fix: need.fix, Reason: need.reason})
		case need.group == securityGroup:
			there = append(there, "without "+need.group+" ("+need.lack+")")
		}
	}
	slices.Sort(there)
	if len(there) > 0 {
		found = slices.Insert(found, 0, Check{Name: name, Verdict: OK, Seen: listed(there, len(there))})
	}
	return found
}

// shared is true where the nodes mount the same claims.
func (p *probe) shared() bool {
	return p.Request.Storage == cluster.SharedStorage || p.Request.Storage == cluster.AutoStorage && p.file.Storage.ClassRWX != ""
}
