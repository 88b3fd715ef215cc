// SPDX-License-Identifier: Apache-2.0

package command

import (
	"slices"
	"strings"
	"testing"
)

func TestInShell(t *testing.T) {
	for _, tc := range []struct{ name, installed, args, text, want string }{
		{"with oc", "oc mlenv", "mlenv", "next: oc adm cordon a; oc get projects", "next: oc adm cordon a; oc get projects"},
		{"a command of both", "", "mlenv", "next: oc describe pod a; oc -n b; (oc get pods)", "next: kubectl describe pod a; oc -n b; (kubectl " +
			"get pods)"},
		{"another name", "", "mlenv", "oc new-project a; oc get projects -A; oc adm uncordon n; oc whoami --show-server",
			"kubectl create namespace a; kubectl get namespaces -A; kubectl uncordon n; kubectl cluster-info"},
		{"of OpenShift alone", "", "mlenv", "oc adm policy add-scc-to-user a; oc login; oc logs build/b -n c; oc debug node/d; doc get",
			"oc adm policy add-scc-to-user a; oc login; oc logs build/b -n c; oc debug node/d; doc get"},
		{"not in PATH", "oc", "bin/mlenv up", "mlenv keeps it. To end it: mlenv down e -n ns",
			"mlenv keeps it. To end it: bin/mlenv down e -n ns"},
		{"in PATH", "oc mlenv", "bin/mlenv up", "mlenv down e -n ns", "mlenv down e -n ns"},
		{"of a step", "oc", "/usr/bin/provision", "mlenv down e -n ns", "mlenv down e -n ns"},
		{"another cluster", "oc mlenv", "mlenv status --context=far --kubeconfig k -- --context=x",
			"mlenv logs r -n ns --rank=1; oc get pods -n ns | tail -n 5",
			"mlenv logs r -n ns --context=far --kubeconfig=k --rank=1; oc get pods -n ns --context=far --kubeconfig=k | tail -n 5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			installed := func(program string) bool { return slices.Contains(strings.Fields(tc.installed), program) }
			if got := inShell(tc.text, strings.Fields(tc.args), installed); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			// inShell may get a text twice, for example the log of an upload.
			if got := inShell(tc.want, strings.Fields(tc.args), installed); got != tc.want {
				t.Errorf("once more: got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestForTerminal(t *testing.T) {
	if got, want := ForTerminal("\x1b[2Jboom\a\nline"), "boom\nline"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
