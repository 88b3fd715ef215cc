// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func accountOf(name, secret string, age time.Duration) *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}}
	if secret != "" {
		account.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
	}
	return account
}

// TestAccountWithPullSecrets tests when a new account is waited for. The fake creates no Secrets: from the third request on, the
// account has one if the case says so.
func TestAccountWithPullSecrets(t *testing.T) {
	const own = "steps-dockercfg-x"
	images := []*metav1.APIResourceList{{GroupVersion: "image.openshift.io/v1"}}
	for _, test := range []struct {
		name             string
		account, other   *corev1.ServiceAccount
		resources        []*metav1.APIResourceList
		comes, waits, ok bool
	}{
		{"it has them", accountOf("steps", own, 0), accountOf("default", "", time.Hour), images, false, false, true},
		{"others have them", accountOf("steps", "", 0), accountOf("default", "default-dockercfg-y", time.Hour), nil, true, true, true},
		{"only a user's", accountOf("steps", "ngc", 0), accountOf("default", "default-dockercfg-y", time.Hour), nil, true, true, true},
		{"none gets any", accountOf("steps", "", 0), accountOf("default", "", time.Hour), images, false, false, false},
		{"a new namespace with image streams", accountOf("steps", "", 0), accountOf("default", "", 0), images, true, true, true},
		{"a new namespace with image streams, without the registry", accountOf("steps", "", 0),
			accountOf("default", "", pullSecretTime-time.Second), images, false, true, false},
		{"a new namespace of plain Kubernetes", accountOf("steps", "", 0), accountOf("default", "", 0), nil, false, false, false},
		{"the account default is missing", accountOf("steps", "", 0), accountOf("unused", "", 0), images, false, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset(test.account, test.other)
			client.Resources = test.resources
			asked := 0
			client.PrependReactor("get", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if action.(clienttesting.GetAction).GetName() != "steps" {
					return false, nil, nil
				}
				if asked++; asked > 2 && test.comes {
					return true, accountOf("steps", own, 0), nil
				}
				return false, nil, nil
			})
			var said []string
			account, err := (&Clients{Kube: client}).AccountWithPullSecrets(t.Context(), "ns", "steps", func(line string) {
				said = append(said, line)
			})
			if err != nil || HasPullSecret(account) != test.ok {
				t.Errorf("got %+v, %v; want pull secrets %v", account, err, test.ok)
			}
			lines := strings.Join(said, "\n")
			if strings.HasPrefix(lines, "Waiting until service account steps has its pull secrets.") != test.waits {
				t.Errorf("it waited %v, want %v: %q", !test.waits, test.waits, lines)
			}
			if strings.Contains(lines, "got no pull secrets within 30s") != (test.waits && !test.ok) {
				t.Errorf("the warning is wrong: %q", lines)
			}
		})
	}
}

// TestWaitForPullSecretsEnds: Ctrl-C ends the wait.
func TestWaitForPullSecretsEnds(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	client := fake.NewClientset(accountOf("steps", "", 0), accountOf("default", "default-dockercfg-y", time.Hour))
	_, err := (&Clients{Kube: client}).AccountWithPullSecrets(ctx, "ns", "steps", func(string) { stop() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cause of the context", err)
	}
}
