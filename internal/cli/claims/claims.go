// SPDX-License-Identifier: Apache-2.0

// Package claims has the command mlenv claims: it lists the claims that runs and environments left, and deletes named ones.
package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// claim is a claim that ml-dev-env created, that a run left its record on, or that an installed cluster file names.
type claim struct {
	// Name is the name of the claim.
	Name string `json:"name"`
	// Environment is the environment that it belongs to. It is left out for a claim that a user created.
	Environment string `json:"environment,omitempty"`
	// Size is the capacity of its volume, or what it requests while it has none.
	Size string `json:"size"`
	// Created is when it was created.
	Created time.Time `json:"created"`
	// LastRun is the newest run with a receipt that used the claim.
	LastRun string `json:"lastRun,omitempty"`
	// LastUse is when that run ended.
	LastUse time.Time `json:"lastUse,omitzero"`
	// Pods are the pods that mount the claim now.
	Pods []string `json:"pods,omitempty"`

	uid types.UID
	// named reports whether an installed cluster file names the claim, which every environment of that file mounts.
	named bool
}

type list []claim

// Names returns the names of the claims for completion, which cannot report an error.
func Names(ctx context.Context, clients *kube.Clients) []string {
	all, _ := readClaims(ctx, clients)
	return humanize.Each(all, func(c claim) string { return c.Name })
}

// readClaims returns the claims of the namespace, those without any known use last.
func readClaims(ctx context.Context, clients *kube.Clients) (list, error) {
	core := clients.Kube.CoreV1()
	found, err := core.PersistentVolumeClaims(clients.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing claims in %s: %w", clients.Namespace, err))
	}
	pods, err := core.Pods(clients.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing pods in %s: %w", clients.Namespace, err))
	}
	receipts, err := receipt.List(ctx, clients.Kube, clients.Namespace, "")
	if err != nil && fail.ReasonOf(err) != fail.InvalidInput { // the other receipts are enough
		return nil, err
	}
	all, named := list{}, slices.Concat(slices.Collect(maps.Values(env.NamedClaims(ctx, clients)))...)
	for i := range found.Items {
		c, ok := claimOf(&found.Items[i], receipts)
		c.named = slices.Contains(named, c.Name)
		if ok || c.named {
			c.Pods = mounting(pods.Items, c.Name)
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b claim) int { return cmp.Or(b.LastUse.Compare(a.LastUse), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// claimOf returns a claim with its last use. ok is false for one that no environment created and no receipt names. One with an owner
// is deleted with that.
func claimOf(object *corev1.PersistentVolumeClaim, receipts []receipt.Receipt) (c claim, ok bool) {
	c = claim{Name: object.Name, Environment: object.Labels[objects.EnvironmentLabel], Size: kube.ClaimSize(object),
		Created: object.CreationTimestamp.Time, uid: object.UID}
	for _, r := range receipts { // the newest first
		if c.Environment != "" && c.isOf(r.Environment) || r.Record != nil && slices.Contains(r.Record.Claims, c.Name) {
			c.LastRun, c.LastUse = r.Run, r.Ended
			break
		}
	}
	return c, len(object.OwnerReferences) == 0 && (c.Environment != "" || c.LastRun != "")
}

// mounting returns the pods that mount a claim. One that has ended does not keep it.
func mounting(pods []corev1.Pod, claim string) (names []string) {
	for _, pod := range pods {
		if !kube.HasEnded(&pod) && fetch.Mounts(&pod, claim) {
			names = append(names, pod.Name)
		}
	}
	return names
}

// deletableClaims returns the named claims if all of them can be deleted. Errors: InvalidInput, and EnvironmentBusy for those that a
// pod mounts, or whose environment exists and may start pods at any time.
func deletableClaims(ctx context.Context, clients *kube.Clients, names []string) (list, error) {
	all, err := readClaims(ctx, clients)
	if err != nil {
		return nil, err
	}
	leases, err := lease.List(ctx, clients.Kube, clients.Namespace)
	if err != nil {
		return nil, err
	}
	// A run has no Lease before its environment is created, which mounts a claim that exists, and perhaps no receipt before its first step.
	starting, err := receipt.Unfinished(ctx, clients.Kube, clients.Namespace)
	if err != nil && fail.ReasonOf(err) != fail.InvalidInput {
		return nil, err
	}
	runs, err := launch.Unfinished(ctx, clients)
	if err != nil {
		return nil, err
	}
	for i := range runs {
		starting = append(starting, receipt.Journal{Start: receipt.Start{Run: runs[i].Name, Environment: launch.EnvironmentOf(&runs[i])}})
	}
	var doomed list
	var problems []error
	for _, name := range names {
		i := slices.IndexFunc(all, func(c claim) bool { return c.Name == name })
		at := fmt.Sprintf("deleting claim %s/%s", clients.Namespace, name)
		if i < 0 {
			problems = append(problems,
				fail.Advise(fail.Becausef(fail.InvalidInput, "%s: it does not exist, or no environment and no run used it", at), "mlenv claims -n %s",
					clients.Namespace))
			continue
		}
		switch c := all[i]; {
		case len(c.Pods) > 0:
			problems = append(problems, fail.Becausef(fail.EnvironmentBusy, "%s: it is mounted by %s", at, strings.Join(c.Pods, ", ")))
		default:
			users := environmentsOf(c, leases)
			run := slices.IndexFunc(starting, func(m receipt.Journal) bool {
				return !m.Kept && c.isOf(m.Environment) // a training in a kept environment mounts nothing any more
			})
			switch {
			case len(users) > 0:
				problems = append(problems, fail.Advise(fail.Becausef(fail.EnvironmentBusy, "%s: its environment %s exists", at, users[0]),
					"mlenv down %s -n %s", users[0], clients.Namespace))
			case run >= 0:
				problems = append(problems, fail.Advise(fail.Becausef(fail.EnvironmentBusy, "%s: run %s, which has not ended, is to mount it", at,
					starting[run].Run), "mlenv cancel %s -n %s", starting[run].Run, clients.Namespace))
			default:
				doomed = append(doomed, c)
			}
		}
	}
	return doomed, errors.Join(problems...)
}

// environmentsOf returns the environments with a Lease that mount the claim, or would once they have nodes. Several may share it.
func environmentsOf(c claim, leases []coordinationv1.Lease) (names []string) {
	for _, l := range leases {
		if c.isOf(l.Name) {
			names = append(names, l.Name)
		}
	}
	return names
}

// isOf reports whether the environment created the claim, or mounts it.
func (c claim) isOf(environment string) bool {
	return environment == c.Environment || c.named || objects.MayMount(environment, c.Name)
}
