// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// idleReleased tests that the installed CronJob releases an unused environment, that one with a job stays, and that
// nothing does so while there is no reaper.
func idleReleased(u trainer) {
	const timeUntilItIsReleased = "2m"
	up := func(name string) string {
		stdout, stderr := u.says(u.TempDir(), command.Done, "up", name, "--cluster-file="+u.clusterFile(), "--steps-image="+u.steps, "--nodes=1",
			"--gpus-per-node=1", "--idle-timeout="+timeUntilItIsReleased)
		return stdout + stderr
	}
	u.mustContain(up("used"), "Nothing will release the environment when it was not used for 2m0s",
		"CronJob "+u.namespace+"/mlenv-reaper is suspended.", "mlenv-reaper -n "+u.namespace+" ", `--patch='{"spec":{"suspend":false}}'`)
	clients := *u.clients
	clients.Namespace = u.namespace
	nodes, err := env.Of(&clients, "used").Nodes(u.Context(), "")
	if err != nil {
		u.Fatal(err)
	}
	defer nodes.Close()
	job := agent.JobSpec{Run: "sleeps", Launcher: agent.Command, Script: "sleep", Args: []string{"3600"}, Nodes: 1, RanksPerNode: 1}
	if _, err := nodes[0].StartJob(u.Context(), "sleeps", job); err != nil {
		u.Fatal(err)
	}
	u.suspendReaper(false)
	u.mustContain(up("idle"), "The reaper also releases it when it was not used for 2m0s")

	leases := u.clients.Kube.CoordinationV1().Leases(u.namespace)
	gone := func(name string) {
		u.Helper()
		ctx, cancel := u.within(timeUntilAllIsReleased + timeForTheObjectToChange)
		defer cancel()
		if err := kube.UntilOne(ctx, "lease "+name, leases, name, func(l *coordinationv1.Lease) (bool, error) {
			return l == nil, nil
		}); err != nil {
			u.Fatalf("environment %s was not released: %v", name, err)
		}
	}
	gone("idle")
	u.waitEvent("idle", "has not been used for ")
	u.waitEvent("idle", "has not used it for ")
	if _, err := leases.Get(u.Context(), "used", metav1.GetOptions{}); err != nil {
		u.Fatalf("the environment with a job: %v", err)
	}
	if events := u.kubectl("get", "events", "--field-selector=involvedObject.name=used"); strings.Contains(events, "EnvironmentIdle") {
		u.Errorf("the environment with a job counts as idle:\n%s", events)
	}
	if err := nodes[0].StopJob(u.Context(), "sleeps", agent.Stop{Reason: "the scenario ends it"}); err != nil {
		u.Fatal(err)
	}
	gone("used")
	u.nothingLeft()
	u.claimsAre("idle-datasets", "idle-workspace", "used-datasets", "used-workspace")
}
