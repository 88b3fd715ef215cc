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
	// failedCreate is how the StatefulSet controller words a refusal.
	failedCreate = regexp.MustCompile(`(?s)^create (?:Claim (\S+) for )?Pod (\S+) in StatefulSet \S+ failed error: (.*)$`)
	// forbidden is the API server's beginning of an admission's refusal.
	forbidden = regexp.MustCompile(`(?s)^\S+ "[^"]*" is forbidden: (.*)$`)
	invalid   = regexp.MustCompile(`(?s)^\S+ "[^"]*" is invalid: (.*)$`)

	noServiceAccount = regexp.MustCompile(`error looking up service account [^:]+: serviceaccounts? "([^"]*)" not found`)
	webhookDenied    = regexp.MustCompile(`(?s)^admission webhook "([^"]*)" denied the request(.*)$`)
	webhookDown      = regexp.MustCompile(`failed calling webhook "([^"]*)"`)
)

// creation is why the StatefulSet cannot make its pods or their claims.
func (e *explainer) creation() []fail.Finding {
	if e.StatefulSet == nil {
		return nil
	}
	// Of each object the last refusal counts.
	last := map[string]fail.Finding{}
	var order []string
	for _, ev := range e.eventsOf("StatefulSet", e.StatefulSet.Name, e.StatefulSet.UID) {
		if ev.reason != "FailedCreate" {
			continue
		}
		found := failedCreate.FindStringSubmatch(ev.text)
		if found == nil {
			continue
		}
		claim, pod, text := found[1], found[2], found[3]
		// What exists by now was made in a later attempt.
		if e.podNamed(pod) != nil {
			continue
		}
		object := "pod " + pod
		if claim != "" {
			object = "claim " + claim
		}
		f := e.refusal(text)
		f.Object, f.Since = object, ev.first
		if _, again := last[object]; !again {
			order = append(order, object)
		}
		last[object] = f
	}
	var found []fail.Finding
	for _, object := range order {
		found = append(found, last[object])
	}
	return found
}

// refusal is what the API server says when a pod or a claim cannot be made.
func (e *explainer) refusal(text string) fail.Finding {
	namespace := e.namespace()
	body := text
	for _, prefix := range []*regexp.Regexp{forbidden, invalid} {
		if m := prefix.FindStringSubmatch(text); m != nil {
			body = m[1]
			break
		}
	}
	if refused := kube.Refusal(errors.New(text), kube.Place{Namespace: namespace, ServiceAccount: e.serviceAccount(), SCC: e.pinned()}); refused != nil {
		f := fail.Finding{Reason: fail.ReasonOf(refused), Seen: oneLine(body), Next: fail.NextOf(refused), Final: true}
		if security := e.securityConstraints(body); security != "" {
			f.Seen = security
			if pinned := e.pinned(); pinned != "" && strings.Contains(security, notUsable) {
				f.Next = fmt.Sprintf("oc adm policy add-scc-to-user %s -z %s -n %s", pinned, e.serviceAccount(), namespace)
			} else if pinned != "" {
				f.Next = fmt.Sprintf("oc describe scc %s (then have it allow that, or name another one in security.scc of the cluster file)", pinned)
				if refused := refusedCapabilities(body); len(refused) > 0 && !slices.Contains(refused, "IPC_LOCK") {
					f.Next = fmt.Sprintf("leave %s out of security.capabilities in the cluster file: RDMA does not need it, where IPC_LOCK is effective the memlock limit does not count; or have it allowed: oc describe scc %s",
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
	f := fail.Finding{Reason: fail.PodsNotReady, Seen: cmp.Or(oneLine(text), "the API server refuses it and does not say why"), Next: fmt.Sprintf("oc describe statefulset %s -n %s", e.StatefulSet.Name, namespace)}
	if invalid.MatchString(text) {
		f.Reason, f.Final = fail.InvalidInput, true
	}
	return f
}
