// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// quota compares the namespace's quotas and limit ranges with what the environment still needs.
func (p *probe) quota(ctx context.Context) []Check {
	const name = "quota"
	demand := p.demand(ctx)
	quotas, err := p.quotas()
	if err != nil {
		return append([]Check{unread(name, "the quotas of namespace "+p.Request.Namespace, err)}, p.limits(ctx, demand)...)
	}
	var checks []Check
	var names []string
	for i := range quotas {
		checks = append(checks, demand.compare(name, &quotas[i])...)
		names = append(names, quotas[i].Name)
	}
	switch {
	case len(quotas) == 0:
		checks = []Check{newCheck(name, OK, "", "the namespace has none")}
	case len(checks) == 0:
		checks = []Check{newCheck(name, OK, "", "the environment fits into %s", humanize.First(names, 8))}
	}
	return append(checks, p.limits(ctx, demand)...)
}

// demand is what an environment still needs: missing pods and missing claims.
type demand struct {
	pods int64
	// spec is the pods', limits the same with limits in place of requests.
	spec, limits *corev1.PodSpec
	claims       []corev1.PersistentVolumeClaim
}

func (p *probe) demand(ctx context.Context) demand {
	d := demand{pods: int64(p.Request.Nodes), spec: p.podSpec(), limits: p.podSpec().DeepCopy()}
	for _, containers := range [][]corev1.Container{d.limits.InitContainers, d.limits.Containers} {
		for i := range containers {
			containers[i].Resources.Requests = containers[i].Resources.Limits
		}
	}
	if pods, err := p.env().Pods(ctx); err == nil {
		d.pods = max(d.pods-int64(len(pods)), 0)
	}
	exists := map[string]bool{}
	if claims, err := p.Clients.Kube.CoreV1().PersistentVolumeClaims(p.Request.Namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for _, claim := range claims.Items {
			exists[claim.Name] = true
		}
	}
	d.claims = slices.DeleteFunc(p.claims(), func(claim corev1.PersistentVolumeClaim) bool { return exists[claim.Name] })
	return d
}

// claims returns all claims of the environment: the shared ones, or each node's own.
func (p *probe) claims() []corev1.PersistentVolumeClaim {
	planned := p.objects[agent.TCP]
	var claims []corev1.PersistentVolumeClaim
	for _, claim := range planned.Claims {
		claims = append(claims, *claim)
	}
	for _, template := range planned.StatefulSet.Spec.VolumeClaimTemplates {
		for node := range p.Request.Nodes {
			claim := template
			claim.Name += "-" + p.Request.Names().PodName(node)
			claims = append(claims, claim)
		}
	}
	return claims
}

// amountOf returns the demand for a resource, by its name in quotas
// (kubernetes:pkg/quota/v1/evaluator/core). ok is false for a resource that the environment does not use.
func (d demand) amountOf(name corev1.ResourceName) (amount resource.Quantity, ok bool) {
	pods := func(spec *corev1.PodSpec, name corev1.ResourceName) (resource.Quantity, bool) {
		q := diagnose.RequestOf(spec, name)
		q.Mul(d.pods)
		return q, true
	}
	switch name {
	case corev1.ResourcePods, "count/pods":
		return *resource.NewQuantity(d.pods, resource.DecimalSI), true
	case corev1.ResourceCPU, corev1.ResourceMemory:
		return pods(d.spec, name)
	case corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory:
		return pods(d.limits, corev1.ResourceName(strings.TrimPrefix(string(name), "limits.")))
	case corev1.ResourcePersistentVolumeClaims, "count/persistentvolumeclaims":
		return *resource.NewQuantity(int64(len(d.claims)), resource.DecimalSI), true
	case corev1.ResourceRequestsStorage:
		return d.storage(""), true
	}
	if class, is := strings.CutSuffix(string(name), ".storageclass.storage.k8s.io/requests.storage"); is {
		return d.storage(class), true
	}
	if short, is := strings.CutPrefix(string(name), "requests."); is {
		return pods(d.spec, corev1.ResourceName(short))
	}
	return resource.Quantity{}, false
}

func (d demand) storage(class string) (sum resource.Quantity) {
	for _, claim := range d.claims {
		if class == "" || claim.Spec.StorageClassName != nil && *claim.Spec.StorageClassName == class {
			sum.Add(claim.Spec.Resources.Requests[corev1.ResourceStorage])
		}
	}
	return sum
}

// compare finds the resources of a quota that are not enough: never, or not now.
func (d demand) compare(check string, quota *corev1.ResourceQuota) (checks []Check) {
	// Quotas for other pods, or for a priority, do not apply.
	if len(quota.Spec.Scopes) > 0 && !slices.Contains(quota.Spec.Scopes, corev1.ResourceQuotaScopeNotBestEffort) &&
		!slices.Contains(quota.Spec.Scopes, corev1.ResourceQuotaScopeNotTerminating) || quota.Spec.ScopeSelector != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(quota.Status.Hard)) {
		amount, ok := d.amountOf(name)
		if !ok || amount.IsZero() {
			continue
		}
		hard, used := quota.Status.Hard[name], quota.Status.Used[name]
		after := used.DeepCopy()
		after.Add(amount)
		seen := fmt.Sprintf("%s: %s: the environment asks %s more, used %s of %s", quota.Name, name, amount.String(), used.String(),
			hard.String())
		switch {
		case amount.Cmp(hard) > 0:
			next := fmt.Sprintf("ask for less (--nodes, resources and storage in the cluster file), or have it raised: oc edit quota %s -n %s",
				quota.Name, quota.Namespace)
			checks = append(checks, newCheck(check, Blocked, next, "%s", seen).because(fail.QuotaExceeded))
		case after.Cmp(hard) > 0:
			next := fmt.Sprintf("oc describe quota %s -n %s (find who uses it)", quota.Name, quota.Namespace)
			checks = append(checks, newCheck(check, Warning, next, "%s", seen))
		}
	}
	return checks
}

func (p *probe) limits(ctx context.Context, demand demand) []Check {
	const name = "limit ranges"
	list, err := p.Clients.Kube.CoreV1().LimitRanges(p.Request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Check{unread(name, "the limit ranges of namespace "+p.Request.Namespace, err)}
	}
	var checks []Check
	for _, ranges := range list.Items {
		next := fmt.Sprintf("correct resources or storage in the cluster file (oc describe limitrange %s -n %s)", ranges.Name,
			p.Request.Namespace)
		for _, item := range ranges.Spec.Limits {
			for _, text := range demand.outside(item) {
				checks = append(checks, newCheck(name, Blocked, next, "%s: %s", ranges.Name, text).because(fail.QuotaExceeded))
			}
		}
	}
	if len(checks) == 0 {
		return []Check{newCheck(name, OK, "", "the pods and claims are within them")}
	}
	return checks
}

func (d demand) outside(item corev1.LimitRangeItem) (texts []string) {
	compare := func(what string, name corev1.ResourceName, least, most resource.Quantity) {
		if limit, ok := item.Max[name]; ok && most.Cmp(limit) > 0 {
			texts = append(texts, fmt.Sprintf("%s of %s is %s, at most %s", name, what, most.String(), limit.String()))
		}
		if limit, ok := item.Min[name]; ok && least.Cmp(limit) < 0 {
			texts = append(texts, fmt.Sprintf("%s of %s is %s, at least %s", name, what, least.String(), limit.String()))
		}
	}
	compute := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	switch item.Type {
	case corev1.LimitTypeContainer:
		for _, container := range slices.Concat(d.spec.InitContainers, d.spec.Containers) {
			for _, name := range compute {
				compare("container "+container.Name, name, container.Resources.Requests[name], container.Resources.Limits[name])
			}
		}
	case corev1.LimitTypePod:
		for _, name := range compute {
			compare("the pod", name, diagnose.RequestOf(d.spec, name), diagnose.RequestOf(d.limits, name))
		}
	case corev1.LimitTypePersistentVolumeClaim:
		for _, claim := range d.claims {
			size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
			compare("claim "+claim.Name, corev1.ResourceStorage, size, size)
		}
	}
	return texts
}
