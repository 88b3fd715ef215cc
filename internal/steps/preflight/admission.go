// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// defaultAccount exists in every namespace.
const defaultAccount = "default"

var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: kube.FieldManager}

// admission sends the exact pod of node 0 as a dry run: over RDMA, and over TCP if that
// is refused. The cluster itself answers, with security context constraints, quotas and webhooks.
func (p *probe) admission(ctx context.Context) []Check {
	account, check := p.account(ctx)
	checks := []Check{check}
	if account == "" {
		return checks
	}
	if p.rdma {
		rdma := p.tryAdmission(ctx, agent.RDMA, account)
		checks = append(checks, p.judge(ctx, rdma, BlockedRDMA)...)
		if rdma.refused == nil {
			return checks
		}
	}
	return append(checks, p.judge(ctx, p.tryAdmission(ctx, agent.TCP, account), Blocked)...)
}

// account returns the account for the dry runs, empty if there can be none. provision may have to create the
// pods' own account; the cluster file names it, and rights may be bound to it before.
func (p *probe) account(ctx context.Context) (string, Check) {
	const check = "service account"
	name, namespace := p.file.Security.ServiceAccount, p.Request.Namespace
	accounts := p.Clients.Kube.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return name, newCheck(check, OK, "", "%s exists", name)
	case !apierrors.IsNotFound(err):
		return name, unread(check, "service account "+name, err)
	}
	account := p.objects[agent.TCP].ServiceAccount.DeepCopy()
	// Its owner, the Lease, does not exist yet either.
	account.OwnerReferences = nil
	_, err = accounts.Create(ctx, account, dryRun)
	switch err = kube.Problem(err); {
	case err == nil:
		return defaultAccount, newCheck(check, OK, "", "%s does not exist yet; a dry run creates it, as provision will", name)
	case apierrors.IsNotFound(err):
		return "", blockedBy(namespaceCheck, err)
	case apierrors.IsForbidden(err) && !kube.LacksRight(err):
		return defaultAccount, newCheck(check, Blocked, fmt.Sprintf("oc create serviceaccount %s -n %s", name, namespace),
			"%s does not exist, and a dry run of it is refused: %s", name, oneLine(err.Error())).because(fail.SecurityRefused)
	}
	return defaultAccount, unread(check, "whether service account "+name+" can be created", err)
}

type trial struct {
	mode agent.Mode
	// account is the pod's in the dry run.
	account string
	// asked is the pod as it was sent, answered as the API server would create it.
	asked, answered *corev1.Pod
	// refused is nil if the pod is admitted, and answer the text of the refusal. unknown is why there is no answer.
	refused *fail.Finding
	answer  string
	unknown error
}

func (p *probe) tryAdmission(ctx context.Context, mode agent.Mode, account string) trial {
	set := p.objects[mode].StatefulSet
	t := trial{mode: mode, account: account, asked: p.pod(mode, account)}
	var err error
	t.answered, err = p.Clients.Kube.CoreV1().Pods(p.Request.Namespace).Create(ctx, t.asked, dryRun)
	switch {
	case err == nil:
	case !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err), kube.LacksRight(err):
		t.unknown = err
	default:
		// The quotas show whether the request never fits, or only not now.
		quotas, _ := p.quotas()
		refused := diagnose.ExplainRejection(set, quotas, err)
		t.refused, t.answer = &refused, err.Error()
	}
	return t
}

// pod returns the pod of node 0 as the StatefulSet's controller creates it, under another name, because node 0 may exist.
func (p *probe) pod(mode agent.Mode, account string) *corev1.Pod {
	set := p.objects[mode].StatefulSet
	name := p.Request.Names().PodName(0)
	template := set.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.GenerateName, pod.Namespace = set.Name+"-preflight-", set.Namespace
	pod.Spec.ServiceAccountName = account
	pod.Spec.Hostname, pod.Spec.Subdomain = name, set.Spec.ServiceName
	for _, claim := range set.Spec.VolumeClaimTemplates {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + name},
		}})
	}
	return pod
}

// judge turns a trial into checks; blocked is the status of a refusal.
func (p *probe) judge(ctx context.Context, t trial, blocked Status) []Check {
	name, account := "pod ("+string(t.mode)+")", p.file.Security.ServiceAccount
	switch {
	case t.unknown != nil:
		check := unread(name, "whether the pod is admitted", t.unknown)
		if fail.ReasonOf(kube.Problem(t.unknown)) == fail.PermissionDenied {
			check.Seen = "whether the pod is admitted is not known: a dry run requires the right to create pods"
		}
		// The constraint that the pod is pinned to can still be checked.
		if scc := t.asked.Annotations[objects.SCCAnnotation]; scc != "" {
			if allowed, err := p.mayUse(ctx, account, scc); err == nil && !allowed {
				check = newCheck(name, blocked, grantConstraint(scc, account, p.Request.Namespace), "it is pinned to security context constraint %s, "+
					"which service account %s may not use", scc, account)
			}
		}
		return []Check{check}
	case t.refused != nil:
		return []Check{p.judgeRefusal(ctx, name, t, blocked)}
	}
	check := newCheck(name, OK, "", "a dry run is admitted")
	if p.building {
		check.Seen += "; its image is a placeholder, because it is not built yet"
	}
	if t.account != account {
		check.Seen += fmt.Sprintf(", as service account %s, because %s does not exist yet", t.account, account)
	}
	checks := []Check{check, p.constraint(ctx, t, blocked)}
	if t.mode == agent.RDMA {
		checks = append(checks, p.memoryLock(t.answered))
	}
	return checks
}

func (p *probe) judgeRefusal(ctx context.Context, name string, t trial, blocked Status) Check {
	r := t.refused
	status, next, account := blocked, r.Next, p.file.Security.ServiceAccount
	switch {
	case r.Reason == fail.QuotaExceeded && !r.Final:
		// The API server checks quotas last: everything else has admitted the pod.
		status = Warning
	case r.Reason == fail.SecurityRefused && t.account != account:
		// Rights may be bound to an account before it exists.
		scc := neededConstraint(t)
		if allowed, err := p.mayUse(ctx, account, scc); err == nil && allowed {
			return newCheck(name, Unknown, fmt.Sprintf("oc create serviceaccount %s -n %s", account, p.Request.Namespace),
				"the pod cannot be tried as %s, which does not exist yet, but may use security context constraint %s", account, scc)
		}
		next = grantConstraint(scc, account, p.Request.Namespace)
	}
	return newCheck(name, status, next, "a dry run is refused: %s", r.Seen).because(r.Reason)
}
