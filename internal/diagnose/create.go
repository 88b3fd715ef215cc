package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

var (
	// failedCreate matches the StatefulSet controller's event about a refusal.
	failedCreate = regexp.MustCompile(`(?s)^create (?:Claim (\S+) for )?Pod (\S+) in StatefulSet \S+ failed error: (.*)$`)
	// refusedObject matches the API server's refusal, by admission if the object is forbidden.
	refusedObject = regexp.MustCompile(`(?s)^\S+ "[^"]*" is (forbidden|invalid): (.*)$`)

	noServiceAccount = regexp.MustCompile(`error looking up service account [^:]+: serviceaccounts? "([^"]*)" not found`)
	webhookDenied    = regexp.MustCompile(`(?s)^admission webhook "([^"]*)" denied the request(.*)$`)
	webhookDown      = regexp.MustCompile(`failed calling webhook "([^"]*)"`)
)

func (e *explainer) creation() []fail.Finding {
	if e.StatefulSet == nil {
		return nil
	}
	var all []fail.Finding
	for _, ev := range e.eventsOf("StatefulSet", e.StatefulSet.Name, e.StatefulSet.UID) {
		if ev.reason != "FailedCreate" {
			continue
		}
		found := failedCreate.FindStringSubmatch(ev.text)
		if found == nil {
			continue
		}
		claim, pod, text := found[1], found[2], found[3]
		// A later attempt succeeded.
		if named(e.Pods, pod) != nil {
			continue
		}
		object := "pod " + pod
		if claim != "" {
			object = "claim " + claim
		}
		f := e.refusal(text)
		f.Object, f.Since = object, ev.first
		f.Next = cmp.Or(f.Next, fmt.Sprintf("oc describe statefulset %s -n %s", e.StatefulSet.Name, e.namespace()))
		// The last refusal of each object counts.
		if i := slices.IndexFunc(all, func(earlier fail.Finding) bool { return earlier.Object == object }); i >= 0 {
			all[i] = f
		} else {
			all = append(all, f)
		}
	}
	return all
}

// refusal explains the API server's refusal of a pod or a claim.
func (e *explainer) refusal(text string) fail.Finding {
	namespace := e.namespace()
	body, invalid := text, false
	if m := refusedObject.FindStringSubmatch(text); m != nil {
		body, invalid = m[2], m[1] == "invalid"
	}
	if refused := kube.Refusal(errors.New(text), kube.PodOwner{Namespace: namespace, ServiceAccount: e.serviceAccount(), SCC: e.pinned()}); refused != nil {
		f := fail.FindingOf(refused)
		f.Seen, f.Final = oneLine(body), true
		if security, unusable := e.securityConstraints(body); security != "" {
			f.Seen = security
			if pinned := e.pinned(); unusable {
				f.Next = fmt.Sprintf("oc adm policy add-scc-to-user %s -z %s -n %s", pinned, e.serviceAccount(), namespace)
			} else if pinned != "" {
				f.Next = fmt.Sprintf("oc describe scc %s (then have it allow that, or name another one in security.scc of the cluster file)", pinned)
				if refused := refusedCapabilities(body); len(refused) > 0 && !slices.Contains(refused, "IPC_LOCK") {
					f.Next = fmt.Sprintf("leave %s out of security.capabilities in the cluster file: RDMA does not need it: if IPC_LOCK is effective, the memlock limit does not count; or have it allowed: oc describe scc %s",
						strings.Join(refused, ", "), pinned)
				}
			}
		}
		if f.Reason == fail.QuotaExceeded {
			e.quotaDetail(body, &f)
		}
		return f
	}
	if strings.Contains(body, "status unknown for quota") {
		return fail.Finding{
			Reason: fail.QuotaExceeded,
			Seen:   "the quota's use has not been counted yet: " + oneLine(body),
			Next:   "oc describe quota -n " + namespace,
		}
	}
	if m := noServiceAccount.FindStringSubmatch(text); m != nil {
		return fail.Finding{
			Reason: fail.SecurityRefused,
			Seen:   fmt.Sprintf("service account %s does not exist in namespace %s", m[1], namespace),
			Next:   fmt.Sprintf("oc create serviceaccount %s -n %s", m[1], namespace),
		}
	}
	if m := webhookDenied.FindStringSubmatch(body); m != nil {
		return fail.Finding{
			Reason: fail.SecurityRefused,
			Seen:   fmt.Sprintf("admission webhook %s refuses it%s", m[1], oneLine(m[2])),
			Next:   "oc get validatingwebhookconfigurations,mutatingwebhookconfigurations -o wide (whose webhook is " + m[1] + "?)",
			Final:  true,
		}
	}
	if m := webhookDown.FindStringSubmatch(text); m != nil {
		return fail.Finding{
			Reason: fail.PodsNotReady,
			Seen:   "admission webhook " + m[1] + " does not answer: " + oneLine(body),
			Next:   "oc get validatingwebhookconfigurations,mutatingwebhookconfigurations -o wide (are the pods of " + m[1] + " running?)",
		}
	}
	f := fail.Finding{Reason: fail.PodsNotReady, Seen: cmp.Or(oneLine(text), "the API server refuses it without a reason")}
	if invalid {
		f.Reason, f.Final = fail.InvalidInput, true
	}
	return f
}
