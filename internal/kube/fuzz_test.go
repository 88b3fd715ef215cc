// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// FuzzRefusal: events and answers quote what users write. Whatever they contain, a refusal keeps its error, and has one of
// two reasons and a command.
func FuzzRefusal(f *testing.F) {
	for _, text := range []string{
		`pods "a" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: 8, limited: 8`,
		`maximum memory usage per Container is 1Gi, but limit is 2Gi`,
		`unable to validate against any security context constraint: [provider restricted-v2: .containers[0].capabilities.add: Invalid value: ` +
			`"IPC_LOCK": capability may not be added, provider "nccl-scc": Forbidden: not usable by user or serviceaccount]`,
		`failed to retrieve the required SCC from the cache`,
		`violates PodSecurity "restricted:latest": non-default capabilities (container "a" must not include "IPC_LOCK")`,
		`User "a" cannot list resource "pods" in API group "" in the namespace "b"`,
	} {
		f.Add(text, "ns", "sa", "")
	}
	f.Fuzz(func(t *testing.T, text, namespace, account, scc string) {
		err := errors.New(text)
		refused := Refusal(err, PodOwner{Namespace: namespace, ServiceAccount: account, SCC: scc})
		if refused != nil {
			reason := fail.ReasonOf(refused)
			if !errors.Is(refused, err) || fail.NextOf(refused) == "" || reason != fail.QuotaExceeded && reason != fail.SecurityRefused {
				t.Errorf("Refusal(%q) = %v, reason %s, next %q", text, refused, reason, fail.NextOf(refused))
			}
		}
		if problem := Problem(err); !errors.Is(problem, err) {
			t.Errorf("Problem(%q) = %v lost its error", text, problem)
		}
		if problem := denied(err); fail.ReasonOf(problem) != fail.PermissionDenied || fail.NextOf(problem) == "" {
			t.Errorf("denied(%q): reason %s, next %q", text, fail.ReasonOf(problem), fail.NextOf(problem))
		}
	})
}
