// SPDX-License-Identifier: Apache-2.0

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

func (e *explainer) creation() {
	if e.StatefulSet == nil {
		return
	}
	for _, ev := range e.eventsOf("StatefulSet", e.StatefulSet.Name, e.StatefulSet.UID) {
		found := failedCreate.FindStringSubmatch(ev.text)
		// If the pod exists, a later attempt succeeded.
		if ev.reason != "FailedCreate" || found == nil || findNamed(e.Pods, found[2]) != nil {
			continue
		}
		object := "pod " + found[2]
		if claim := found[1]; claim != "" {
			object = "claim " + claim
		}
		f := e.refusal(found[3])
		f.Object, f.Since = object, ev.first
		f.Next = cmp.Or(f.Next, fmt.Sprintf("oc describe statefulset %s -n %s", e.StatefulSet.Name, e.namespace()))
		// The last refusal of each object counts. There are no other findings yet.
		if i := slices.IndexFunc(e.findings, func(earlier fail.Finding) bool { return earlier.Object == object }); i >= 0 {
			e.findings[i] = f
		} else {
			e.add(f)
		}
	}
}

// refusal explains the API server's refusal of a pod or a claim.
func (e *explainer) refusal(text string) fail.Finding {
	namespace := e.namespace()
	body, invalid := text, false
	if m := refusedObject.FindStringSubmatch(text); m != nil {
		body, invalid = m[2], m[1] == "invalid"
	}
	if refused := kube.Refusal(errors.New(text), kube.PodOwner{Namespace: namespace, ServiceAccount: e.serviceAccount(),
		SCC: e.pinned()}); refused != nil {
		f := fail.FindingOf(refused)
		f.Seen, f.Final = oneLine(body), true
		if security, unusable := e.securityConstraints(body); security != "" {
			f.Seen = security
			refused := refusedCapabilities(body)
			switch pinned := e.pinned(); {
			case unusable:
				f.Next = fmt.Sprintf("oc adm policy add-scc-to-user %s -z %s -n %s", pinned, e.serviceAccount(), namespace)
			case pinned != "" && len(refused) > 0 && !slices.Contains(refused, "IPC_LOCK"):
				f.Next = fmt.Sprintf("leave %s out of security.capabilities in the cluster file: RDMA does not need it: if IPC_LOCK is effective, "+
					"the memlock limit does not count; or have it allowed: oc describe scc %s",
					strings.Join(refused, ", "), pinned)
			case pinned != "":
				f.Next = fmt.Sprintf("oc describe scc %s (then have it allow that, or name another one in security.scc of the cluster file)", pinned)
			}
		}
		if f.Reason == fail.QuotaExceeded {
			e.quotaDetail(body, &f)
		}
		return f
	}
	f := fail.Finding{Reason: fail.PodsNotReady, Seen: cmp.Or(oneLine(text), "the API server refuses it without a reason")}
	account, down := noServiceAccount.FindStringSubmatch(text), webhookDown.FindStringSubmatch(text)
	denied := webhookDenied.FindStringSubmatch(body)
	const webhooks = "oc get validatingwebhookconfigurations,mutatingwebhookconfigurations -o wide "
	switch {
	case strings.Contains(body, "status unknown for quota"):
		f.Reason, f.Seen = fail.QuotaExceeded, "the quota's use has not been counted yet: "+oneLine(body)
		f.Next = "oc describe quota -n " + namespace
	case account != nil:
		f.Reason, f.Seen = fail.SecurityRefused, fmt.Sprintf("service account %s does not exist in namespace %s", account[1], namespace)
		f.Next = fmt.Sprintf("oc create serviceaccount %s -n %s", account[1], namespace)
	case denied != nil:
		f.Reason, f.Seen, f.Final = fail.SecurityRefused, fmt.Sprintf("admission webhook %s refuses it%s", denied[1], oneLine(denied[2])), true
		f.Next = webhooks + "(whose webhook is " + denied[1] + "?)"
	case down != nil:
		f.Seen = "admission webhook " + down[1] + " does not answer: " + oneLine(body)
		f.Next = webhooks + "(are the pods of " + down[1] + " running?)"
	case invalid:
		f.Reason, f.Final = fail.InvalidInput, true
	}
	return f
}
