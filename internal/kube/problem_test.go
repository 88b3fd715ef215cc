// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// answer returns an error of the API server as client-go returns it.
func answer(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// Real API servers returned these messages.
func TestProblem(t *testing.T) {
	owner := PodOwner{Namespace: "nccl-test", ServiceAccount: "ml-dev-sa"}
	forbidden := func(message string) error { return answer(403, metav1.StatusReasonForbidden, message) }
	for _, tc := range []struct {
		name   string
		err    error
		reason fail.Reason
		next   string
	}{
		{
			"permission of a service account",
			forbidden(`leases.coordination.k8s.io "ml-dev-env" is forbidden: User "system:serviceaccount:nccl-test:pipeline" cannot get resource ` +
				`"leases" in API group "coordination.k8s.io" in the namespace "nccl-test"`),
			fail.PermissionDenied,
			"oc create role ml-dev-env-get-leases -n nccl-test --verb=get --resource=leases.coordination.k8s.io\n" +
				"oc create rolebinding ml-dev-env-get-leases -n nccl-test --role=ml-dev-env-get-leases --serviceaccount=nccl-test:pipeline",
		},
		{
			"permission of a person, core group, patch",
			forbidden(`secrets "ml-dev-env-agent-server" is forbidden: User "h-kim" cannot patch resource "secrets" in API group "" in the ` +
				`namespace "nccl-test"`),
			fail.PermissionDenied,
			"oc create role ml-dev-env-patch-secrets -n nccl-test --verb=patch,create --resource=secrets\n" +
				"oc create rolebinding ml-dev-env-patch-secrets -n nccl-test --role=ml-dev-env-patch-secrets --user=h-kim",
		},
		{
			"permission for a subresource",
			forbidden(`pods "ml-dev-env-0" is forbidden: User "h-kim" cannot create resource "pods/portforward" in API group "" in the namespace ` +
				`"nccl-test"`),
			fail.PermissionDenied,
			"oc create role ml-dev-env-create-pods-portforward -n nccl-test --verb=create --resource=pods/portforward\n" +
				"oc create rolebinding ml-dev-env-create-pods-portforward -n nccl-test --role=ml-dev-env-create-pods-portforward --user=h-kim",
		},
		{
			"permission in the whole cluster",
			forbidden(`nodes is forbidden: User "h-kim" cannot list resource "nodes" in API group "" at the cluster scope`),
			fail.PermissionDenied,
			"oc create clusterrole ml-dev-env-list-nodes --verb=list,watch --resource=nodes\n" +
				"oc create clusterrolebinding ml-dev-env-list-nodes --clusterrole=ml-dev-env-list-nodes --user=h-kim",
		},
		{
			"not logged in",
			forbidden(`pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace "nccl-test"`),
			fail.PermissionDenied, "oc login",
		},
		{"forbidden without a known text", forbidden("no"), fail.PermissionDenied, "oc auth can-i --list"},
		{
			"old token", answer(401, metav1.StatusReasonUnauthorized, "Unauthorized"),
			fail.PermissionDenied, "oc login (the token of this login is not valid any more)",
		},
		{
			"quota",
			forbidden(`pods "ml-dev-env-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: ` +
				`requests.nvidia.com/gpu=6, limited: requests.nvidia.com/gpu=8`),
			fail.QuotaExceeded, "oc describe quota gpus -n nccl-test",
		},
		{
			"quota that wants limits",
			forbidden(`pods "ml-dev-env-0" is forbidden: failed quota: compute: must specify limits.cpu for: train`),
			fail.QuotaExceeded, "oc describe quota compute -n nccl-test",
		},
		{
			"limit range",
			forbidden(`pods "ml-dev-env-0" is forbidden: maximum memory usage per Container is 64Gi, but limit is 256Gi`),
			fail.QuotaExceeded, "oc describe limitrange -n nccl-test",
		},
		{
			"SCC: capability",
			forbidden(`pods "ml-dev-env-0" is forbidden: unable to validate against any security context constraint: [provider "anyuid": ` +
				`Forbidden: not usable by user or serviceaccount, provider restricted-v2: .containers[0].capabilities.add: Invalid value: ` +
				`"IPC_LOCK": capability may not be added]`),
			fail.SecurityRefused, "oc adm policy add-scc-to-user privileged -z ml-dev-sa -n nccl-test",
		},
		{
			"SCC: IPC_LOCK, where the cluster has a constraint for it",
			forbidden(`pods "ml-dev-env-0" is forbidden: unable to validate against any security context constraint: [provider "anyuid": ` +
				`Forbidden: not usable by user or serviceaccount, provider restricted-v2: .containers[0].capabilities.add: Invalid value: ` +
				`"IPC_LOCK": capability may not be added, provider "nccl-scc": Forbidden: not usable by user or serviceaccount, provider ` +
				`"privileged": Forbidden: not usable by user or serviceaccount]`),
			fail.SecurityRefused, "oc adm policy add-scc-to-user nccl-scc -z ml-dev-sa -n nccl-test",
		},
		{
			"SCC: more than IPC_LOCK",
			forbidden(`pods "ml-dev-env-0" is forbidden: unable to validate against any security context constraint: [provider restricted-v2: ` +
				`.containers[0].capabilities.add: Invalid value: "SYS_RESOURCE": capability may not be added, provider "nccl-scc": Forbidden: not ` +
				`usable by user or serviceaccount]`),
			fail.SecurityRefused, "oc adm policy add-scc-to-user privileged -z ml-dev-sa -n nccl-test",
		},
		{
			"SCC: user",
			forbidden(`pods "ml-dev-env-0" is forbidden: unable to validate against any security context constraint: [provider restricted-v2: ` +
				`.containers[0].runAsUser: Invalid value: 0: must be in the ranges: [1000680000, 1000689999]]`),
			fail.SecurityRefused, "oc adm policy add-scc-to-user anyuid -z ml-dev-sa -n nccl-test",
		},
		{
			"SCC that is required and not there",
			forbidden(
				`pods "ml-dev-env-0" is forbidden: failed to retrieve the required SCC "nccl-scc": securitycontextconstraints.security.openshift.io ` +
					`"nccl-scc" not found`),
			fail.SecurityRefused, "oc get scc (then correct security.scc in the cluster file, or let an administrator create that one)",
		},
		{
			"SCC in the event of a StatefulSet",
			errors.New(`create Pod ml-dev-env-0 in StatefulSet ml-dev-env failed error: pods "ml-dev-env-0" is forbidden: unable to validate ` +
				`against any security context constraint: [provider restricted-v2: .containers[0].privileged: Invalid value: true: Privileged ` +
				`containers are not allowed]`),
			fail.SecurityRefused, "oc adm policy add-scc-to-user privileged -z ml-dev-sa -n nccl-test",
		},
		{
			"pod security: restricted",
			forbidden(`pods "ml-dev-env-0" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container ` +
				`"train" must set securityContext.allowPrivilegeEscalation=false)`),
			fail.SecurityRefused, "oc label namespace nccl-test pod-security.kubernetes.io/enforce=baseline --overwrite",
		},
		{
			"pod security: baseline",
			forbidden(`pods "ml-dev-env-0" is forbidden: violates PodSecurity "baseline:latest": non-default capabilities (container "train" must ` +
				`not include "IPC_LOCK" in securityContext.capabilities.add)`),
			fail.SecurityRefused, "oc label namespace nccl-test pod-security.kubernetes.io/enforce=privileged --overwrite",
		},
		{"no namespace", answer(404, metav1.StatusReasonNotFound, `namespaces "nccl-test" not found`), fail.InvalidInput,
			"oc new-project nccl-test"},
		{
			"immutable",
			answer(422, metav1.StatusReasonInvalid,
				`StatefulSet.apps "ml-dev-env" is invalid: spec: Forbidden: updates to statefulset spec for fields other than 'replicas', `+
					`'ordinals', 'template' are forbidden`),
			fail.EnvironmentDiffers, "",
		},
		{"server away", &net.OpError{Op: "dial", Err: errors.New("connection refused")}, fail.APIServerUnreachable,
			"oc get --raw /readyz (is the API server up, and reachable from here?)"},
		{"has a reason", fail.Because(fail.ClaimUnbound, forbidden("no")), fail.ClaimUnbound, ""},
		{"ended", context.Canceled, fail.Internal, ""},
		{"something else", errors.New("odd"), fail.Internal, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wrapped := fmt.Errorf("doing it: %w", tc.err)
			got := Refusal(wrapped, owner)
			if got == nil {
				got = Problem(wrapped)
			}
			if diff := cmp.Diff([]string{string(tc.reason), tc.next}, []string{string(fail.ReasonOf(got)), fail.NextOf(got)}); diff != "" {
				t.Errorf("reason and next (-want +got):\n%s", diff)
			}
			if !errors.Is(got, tc.err) || !strings.HasPrefix(got.Error(), "doing it: ") {
				t.Errorf("the error does not wrap its cause: %v", got)
			}
		})
	}
	if Problem(nil) != nil {
		t.Error("Problem(nil) is not nil")
	}
}

// An error names a failed request once, by its object, and the API server by its address.
func TestProblemIsShort(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "https://api.cairo:6443/api/v1/namespaces/team/pods?limit=500",
		Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}}
	unknown := &url.Error{Op: "Get", URL: "https://api.cairo:6443/version",
		Err: &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "api.cairo"}}}
	untrusted := &url.Error{Op: "Get", URL: "https://api.cairo:6443/version",
		Err: errors.New("tls: failed to verify certificate: x509: certificate signed by unknown authority")}
	for err, want := range map[error]string{
		refused: "listing pods: no answer from API server https://api.cairo:6443: connection refused",
		unknown: "listing pods: no answer from API server https://api.cairo:6443: lookup api.cairo: no such host",
		untrusted: "listing pods: no answer from API server https://api.cairo:6443: tls: failed to verify certificate: x509: certificate " +
			"signed by unknown authority",
	} {
		got := Problem(fmt.Errorf("listing pods: %w", err))
		if got.Error() != want || !errors.Is(got, err) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestProblemKeepsNotFound(t *testing.T) {
	err := Problem(fmt.Errorf("getting: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x")))
	if !apierrors.IsNotFound(err) {
		t.Errorf("got %v: want NotFound to be recognised", err)
	}
}
