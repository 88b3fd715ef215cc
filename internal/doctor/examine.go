// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// examination is everything that was read of an environment.
type examination struct {
	Options
	clients *kube.Clients
	env     env.Environment
	// here reports that the nodes are parts of this machine.
	here bool
	now  time.Time

	// cluster is what the API server returned; it is empty if clusterErr is not nil.
	cluster    diagnose.Snapshot
	clusterErr error
	// lease is nil if it does not exist or may not be read.
	lease    *lease.Busy
	holderID string
	ending   bool
	leaseErr error
	policies []networkingv1.NetworkPolicy

	nodes []*node
	// agentsErr is why no agent could be asked.
	agentsErr error
	jobs      []job
	findings  []Finding
}

// readCluster reads everything from the API server.
func (e *examination) readCluster(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() { e.cluster, e.clusterErr = diagnose.Collect(ctx, e.clients.Kube, e.env.Namespace, e.env.Name) })
	group.Go(func() {
		held := e.env.Lease(slog.New(slog.DiscardHandler))
		held.Now = e.Now
		found, err := held.Find(ctx)
		if err != nil {
			e.leaseErr = err
			return
		}
		e.lease, e.holderID, e.ending = held.ReadHolder(ctx, found), lease.HolderOf(found).ID, found.DeletionTimestamp != nil
	})
	group.Go(func() {
		// Nothing else depends on them, so a refusal is not a finding.
		if list, err := e.clients.Kube.NetworkingV1().NetworkPolicies(e.env.Namespace).List(ctx, metav1.ListOptions{}); err == nil {
			e.policies = list.Items
		}
	})
	group.Wait()
	if e.clusterErr != nil {
		// The StatefulSet alone has the number of agents.
		if set, err := e.env.StatefulSet(ctx); err == nil {
			e.cluster.StatefulSet = set
		}
	}
}

func (e *examination) missing() bool {
	return e.clusterErr == nil && e.cluster.StatefulSet == nil && len(e.cluster.Pods) == 0
}

func (e *examination) networkMode() agent.Mode {
	if e.cluster.StatefulSet == nil {
		return ""
	}
	return agent.Mode(e.cluster.StatefulSet.Annotations[objects.ModeAnnotation])
}

func (e *examination) rdmaWanted() bool { return e.networkMode() == agent.RDMA }

// unreadable has a finding for everything that could not be read.
func (e *examination) unreadable() {
	add := func(object string, err error) {
		if err == nil {
			return
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fail.Advise(fmt.Errorf("the API server did not answer within %s", e.Patience), "oc get --raw /readyz (is the API server up, and "+
				"reachable from here?)")
		}
		e.found(NotReadable, object, err.Error(), fail.NextOf(err))
	}
	if fail.ReasonOf(e.clusterErr) == fail.APIServerUnreachable && e.agentsErr != nil {
		add("API server", e.clusterErr)
	} else {
		add("pods and events", e.clusterErr)
		if fail.ReasonOf(e.leaseErr) != fail.EnvironmentMissing {
			add("the lease", e.leaseErr)
		}
		if fail.ReasonOf(e.agentsErr) == fail.EnvironmentMissing || apierrors.IsNotFound(e.agentsErr) {
			e.found(NotReadable, "all agents",
				fmt.Sprintf("no agent was asked: secret %s/%s does not exist, and no step can reach the agents without it",
					e.env.Namespace, e.env.ClientSecret),
				fmt.Sprintf("mlenv down %s -n %s --force, and provision the environment again, which creates the secrets", e.env.Name,
					e.env.Namespace)).Level = fail.Broken
		} else {
			add("all agents (none was asked)", e.agentsErr)
		}
	}
	// If nothing at all could be read, an empty list of findings must not look healthy.
	if e.clusterErr != nil && e.agentsErr != nil {
		for i := range e.findings {
			if e.findings[i].Level != fail.Broken {
				e.findings[i].Level = fail.Unknown
			}
		}
	}
}
