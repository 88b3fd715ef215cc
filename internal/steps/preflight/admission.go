package preflight

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// everybodysAccount is in every namespace.
const everybodysAccount = "default"

var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: kube.FieldManager}

// admission has the API server try the very pod of node 0: over RDMA, and where that
// is refused with sockets alone. What its admission says is the cluster's exact
// verdict, security context constraints, quotas and webhooks included.
func (p *probe) admission(ctx context.Context) []Check {
	account, checks := p.account(ctx)
	if account == "" {
		return checks
	}
	if p.rdma {
		rdma := p.try(ctx, objects.RDMA, account)
		checks = append(checks, p.judge(ctx, rdma, BlockedRDMA)...)
		if rdma.refused == nil {
			return checks
		}
	}
	return append(checks, p.judge(ctx, p.try(ctx, objects.TCP, account), Blocked)...)
}

// account is whom the pod can be tried as, "" where it cannot be at all. The pods' own may be made by provision
// only; it stands in the cluster file, and rights may be bound to it before.
func (p *probe) account(ctx context.Context) (string, []Check) {
	const check = "service account"
	name, namespace := p.file.Security.ServiceAccount, p.Request.Namespace
	accounts := p.Clients.Kube.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return name, []Check{{Name: check, Verdict: OK, Seen: fmt.Sprintf("%s is there", name)}}
	case !apierrors.IsNotFound(err):
		return name, []Check{unread(check, "service account "+name, err)}
	}
	wanted := p.objects[objects.TCP].ServiceAccount.DeepCopy()
	// Its owner, the Lease, is not there yet either.
	wanted.OwnerReferences = nil
	if _, err := accounts.Create(ctx, wanted, dryRun); err != nil {
		err = kube.Problem(err)
		switch {
		case apierrors.IsNotFound(err):
			return "", []Check{{Name: namespaceCheck, Verdict: Blocked, Seen: oneLine(err.Error()), Fix: fail.NextOf(err), Reason: fail.ReasonOf(err)}}
		case apierrors.IsForbidden(err) && !unauthorized(err):
			return everybodysAccount, []Check{{
				Name: check, Verdict: Blocked, Seen: fmt.Sprintf("%s is not there, and a dry run of it is refused: %s", name, oneLine(err.Error())),
				Fix: fmt.Sprintf("oc create serviceaccount %s -n %s", name, namespace), Reason: fail.SecurityRefused,
			}}
		}
		return everybodysAccount, []Check{unread(check, "whether service account "+name+" can be made", err)}
	}
	return everybodysAccount, []Check{{Name: check, Verdict: OK, Seen: fmt.Sprintf("%s is not there yet; a dry run makes it, as provision will", name)}}
}

// unauthorized tells RBAC's refusal of whoever asks from admission's refusal of the
// object: both are Forbidden.
func unauthorized(err error) bool {
	return strings.Contains(err.Error(), " cannot create resource ")
}

// trial is a dry run of a pod.
type trial struct {
	mode objects.Mode
	// account is whom it was tried as.
	account string
	// asked is the pod as it was sent, answered as the API server would make it.
	asked, answered *corev1.Pod
	// refused is there where admission says no, and answer are its words; unknown where the
	// pod could not be tried.
	refused *fail.Finding
	answer  string
	unknown error
}

func (p *probe) try(ctx context.Context, mode objects.Mode, account string) trial {
	set := p.objects[mode].StatefulSet
	t := trial{mode: mode, account: account, asked: p.pod(mode, account)}
	var err error
	t.answered, err = p.Clients.Kube.CoreV1().Pods(p.Request.Namespace).Create(ctx, t.asked, dryRun)
	switch {
	case err == nil:
	case !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err), unauthorized(err):
		t.unknown = err
	default:
		// What others fill now is told apart from what is too small at any time.
		quotas, _ := p.quotas()
		refused := diagnose.ExplainRejection(set, quotas, err)
		t.refused, t.answer = &refused, err.Error()
	}
	return t
}

// pod is that of node 0 as the StatefulSet's controller makes it, under another
// name: it may be there.
func (p *probe) pod(mode objects.Mode, account string) *corev1.Pod {
	set := p.objects[mode].StatefulSet
	name := objects.NamesOf(p.Request.Name).PodName(0)
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

// judge turns a trial into checks; blocked is what a refusal comes to.
func (p *probe) judge(ctx context.Context, t trial, blocked Verdict) []Check {
	check := Check{Name: "pod (" + string(t.mode) + ")"}
	switch {
	case t.unknown != nil:
		unknown := unread(check.Name, "whether the pod is admitted", t.unknown)
		unknown.Seen = strings.Replace(unknown.Seen, "may not be read", "is not known: a dry run wants the right to create pods", 1)
		// What the pod is pinned to can be asked about all the same.
		if scc := t.asked.Annotations[objects.SCCAnnotation]; scc != "" {
			account := p.file.Security.ServiceAccount
			if allowed, err := p.mayUse(ctx, account, scc); err == nil && !allowed {
				unknown.Verdict, unknown.Fix = blocked, grantConstraint(scc, account, p.Request.Namespace)
				unknown.Seen = fmt.Sprintf("it is pinned to security context constraint %s, which service account %s may not use", scc, account)
			}
		}
		return []Check{unknown}
	case t.refused != nil:
		return p.judgeRefusal(ctx, t, check, blocked)
	}
	check.Verdict, check.Seen = OK, "a dry run is admitted"
	if p.building {
		check.Seen += "; its image is a placeholder, for it is yet to be built"
	}
	if t.account != p.file.Security.ServiceAccount {
		check.Seen += fmt.Sprintf(", as service account %s, for %s is not there yet", t.account, p.file.Security.ServiceAccount)
	}
	checks := append([]Check{check}, p.constraint(ctx, t, blocked))
	if t.mode == objects.RDMA {
		checks = append(checks, p.memoryLock(t.answered))
	}
	return checks
}

func (p *probe) judgeRefusal(ctx context.Context, t trial, check Check, blocked Verdict) []Check {
	r := t.refused
	check.Verdict, check.Seen, check.Fix = blocked, "a dry run is refused: "+r.Seen, r.Next
	account := p.file.Security.ServiceAccount
	switch {
	case r.Reason == fail.QuotaExceeded && !r.Final:
		// Quotas are asked last: everything else has admitted the pod.
		check.Verdict = Warning
	case r.Reason == fail.SecurityRefused && t.account != account:
		// Rights may be bound to an account before it is there.
		scc := neededConstraint(t)
		check.Fix = grantConstraint(scc, account, p.Request.Namespace)
		if allowed, err := p.mayUse(ctx, account, scc); err == nil && allowed {
			check.Verdict, check.Fix = Unknown, fmt.Sprintf("oc create serviceaccount %s -n %s", account, p.Request.Namespace)
			check.Seen = fmt.Sprintf("the pod cannot be tried as %s, which is not there yet, but may use security context constraint %s", account, scc)
		}
	}
	if check.Verdict == Blocked {
		check.Reason = r.Reason
	}
	return []Check{check}
}
