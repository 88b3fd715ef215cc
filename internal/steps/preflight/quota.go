package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func (p *probe) listQuotas(ctx context.Context) ([]corev1.ResourceQuota, error) {
	list, err := p.Clients.Kube.CoreV1().ResourceQuotas(p.Request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// quota compares the namespace's quotas and limit ranges with what the environment
// asks for in all, less what it has already.
func (p *probe) quota(ctx context.Context) []Check {
	var checks []Check
	quotas, err := p.quotas()
	if err != nil {
		checks = append(checks, unread("quota", "the quotas of namespace "+p.Request.Namespace, err))
	}
	total := p.total(ctx)
	for i := range quotas {
		checks = append(checks, p.fill(&quotas[i], total)...)
	}
	if err == nil && len(checks) == 0 {
		checks = append(checks, Check{Name: "quota", Verdict: OK, Seen: quotaNames(quotas)})
	}
	return append(checks, p.limits(ctx)...)
}

func quotaNames(quotas []corev1.ResourceQuota) string {
	if len(quotas) == 0 {
		return "the namespace has none"
	}
	var names []string
	for _, quota := range quotas {
		names = append(names, quota.Name)
	}
	return "there is enough of " + listed(names, 8)
}

// ask is what an environment wants of a quota's resource: pods that are not there,
// and claims that are not.
type ask struct {
	pods   int64
	spec   *corev1.PodSpec
	limits *corev1.PodSpec
	claims []corev1.PersistentVolumeClaim
}

// total is what is yet to be made.
func (p *probe) total(ctx context.Context) ask {
	a := ask{pods: int64(p.Request.Nodes), spec: p.spec(), limits: p.spec().DeepCopy()}
	for _, containers := range [][]corev1.Container{a.limits.InitContainers, a.limits.Containers} {
		for i := range containers {
			containers[i].Resources.Requests = containers[i].Resources.Limits
		}
	}
	namespace := p.Request.Namespace
	if pods, err := p.Clients.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.Selector(p.Request.Name).String()}); err == nil {
		a.pods = max(a.pods-int64(len(pods.Items)), 0)
	}
	there := map[string]bool{}
	if claims, err := p.Clients.Kube.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for _, claim := range claims.Items {
			there[claim.Name] = true
		}
	}
	for _, claim := range p.claims() {
		if !there[claim.Name] {
			a.claims = append(a.claims, claim)
		}
	}
	return a
}

// claims are all that the environment has: shared ones, or those of every node.
func (p *probe) claims() []corev1.PersistentVolumeClaim {
	planned := p.objects[objects.TCP]
	var claims []corev1.PersistentVolumeClaim
	for _, claim := range planned.Claims {
		claims = append(claims, *claim)
	}
	for _, template := range planned.StatefulSet.Spec.VolumeClaimTemplates {
		for node := range p.Request.Nodes {
			claim := template
			claim.Name += "-" + objects.NamesOf(p.Request.Name).PodName(node)
			claims = append(claims, claim)
		}
	}
	return claims
}

// of is what is asked of a resource as quotas name it
// (kubernetes:pkg/quota/v1/evaluator/core). ok is false of what is not asked for here.
func (a ask) of(name corev1.ResourceName) (asked resource.Quantity, ok bool) {
	pods := func(spec *corev1.PodSpec, name corev1.ResourceName) (resource.Quantity, bool) {
		q := diagnose.RequestOf(spec, name)
		q.Mul(a.pods)
		return q, true
	}
	switch name {
	case corev1.ResourcePods, "count/pods":
		return *resource.NewQuantity(a.pods, resource.DecimalSI), true
	case corev1.ResourceCPU, corev1.ResourceMemory:
		return pods(a.spec, name)
	case corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory:
		return pods(a.limits, corev1.ResourceName(strings.TrimPrefix(string(name), "limits.")))
	case corev1.ResourcePersistentVolumeClaims, "count/persistentvolumeclaims":
		return *resource.NewQuantity(int64(len(a.claims)), resource.DecimalSI), true
	case corev1.ResourceRequestsStorage:
		return a.storage(""), true
	}
	if class, is := strings.CutSuffix(string(name), ".storageclass.storage.k8s.io/requests.storage"); is {
		return a.storage(class), true
	}
	if short, is := strings.CutPrefix(string(name), "requests."); is {
		return pods(a.spec, corev1.ResourceName(short))
	}
	return resource.Quantity{}, false
}

// storage of the claims of a class, or of all of them.
func (a ask) storage(class string) (sum resource.Quantity) {
	for _, claim := range a.claims {
		if class == "" || claim.Spec.StorageClassName != nil && *claim.Spec.StorageClassName == class {
			sum.Add(claim.Spec.Resources.Requests[corev1.ResourceStorage])
		}
	}
	return sum
}

// fill finds resources of a quota that there is not enough of: at any time, or now.
func (p *probe) fill(quota *corev1.ResourceQuota, a ask) []Check {
	// Quotas of other pods, and those that a priority selects, say nothing here.
	if len(quota.Spec.Scopes) > 0 && !slices.Contains(quota.Spec.Scopes, corev1.ResourceQuotaScopeNotBestEffort) && !slices.Contains(quota.Spec.Scopes, corev1.ResourceQuotaScopeNotTerminating) || quota.Spec.ScopeSelector != nil {
		return nil
	}
	var checks []Check
	for _, name := range sorted(quota.Status.Hard) {
		asked, ok := a.of(name)
		if !ok || asked.IsZero() {
			continue
		}
		hard, used := quota.Status.Hard[name], quota.Status.Used[name]
		after := used.DeepCopy()
		after.Add(asked)
		if after.Cmp(hard) <= 0 {
			continue
		}
		check := Check{
			Name: "quota", Verdict: Warning, Fix: fmt.Sprintf("oc describe quota %s -n %s (who uses it?)", quota.Name, quota.Namespace),
			Seen: fmt.Sprintf("%s: %s: the environment asks %s more, used %s of %s", quota.Name, name, asked.String(), used.String(), hard.String()),
		}
		if asked.Cmp(hard) > 0 {
			check.Verdict, check.Reason = Blocked, fail.QuotaExceeded
			check.Fix = fmt.Sprintf("ask for less (--nodes, resources and storage in the cluster file), or have it raised: oc edit quota %s -n %s", quota.Name, quota.Namespace)
		}
		checks = append(checks, check)
	}
	return checks
}

func sorted(list corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// limits compares limit ranges with one container, one pod and one claim.
func (p *probe) limits(ctx context.Context) []Check {
	const name = "limit ranges"
	list, err := p.Clients.Kube.CoreV1().LimitRanges(p.Request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Check{unread(name, "the limit ranges of namespace "+p.Request.Namespace, err)}
	}
	a := p.total(ctx)
	var checks []Check
	for _, ranges := range list.Items {
		for _, item := range ranges.Spec.Limits {
			for _, text := range p.outside(item, a) {
				checks = append(checks, Check{
					Name: name, Verdict: Blocked, Reason: fail.QuotaExceeded, Seen: ranges.Name + ": " + text,
					Fix: fmt.Sprintf("correct resources or storage in the cluster file (oc describe limitrange %s -n %s)", ranges.Name, p.Request.Namespace),
				})
			}
		}
	}
	if len(checks) == 0 {
		checks = append(checks, Check{Name: name, Verdict: OK, Seen: "the pods and claims are within them"})
	}
	return checks
}

// outside says what is more or less than an item of a limit range allows.
func (p *probe) outside(item corev1.LimitRangeItem, a ask) (texts []string) {
	compare := func(what string, name corev1.ResourceName, least, most resource.Quantity) {
		if limit, ok := item.Max[name]; ok && most.Cmp(limit) > 0 {
			texts = append(texts, fmt.Sprintf("%s of %s is %s, at most %s", name, what, most.String(), limit.String()))
		}
		if limit, ok := item.Min[name]; ok && least.Cmp(limit) < 0 {
			texts = append(texts, fmt.Sprintf("%s of %s is %s, at least %s", name, what, least.String(), limit.String()))
		}
	}
	switch item.Type {
	case corev1.LimitTypeContainer:
		for _, container := range slices.Concat(a.spec.InitContainers, a.spec.Containers) {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				compare("container "+container.Name, name, container.Resources.Requests[name], container.Resources.Limits[name])
			}
		}
	case corev1.LimitTypePod:
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			compare("the pod", name, diagnose.RequestOf(a.spec, name), diagnose.RequestOf(a.limits, name))
		}
	case corev1.LimitTypePersistentVolumeClaim:
		for _, claim := range a.claims {
			size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
			compare("claim "+claim.Name, corev1.ResourceStorage, size, size)
		}
	}
	return texts
}
