// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// newAccounts returns a client with two service accounts. It numbers tokens and the names of Secrets.
func newAccounts(tokenLife time.Duration) *kubefake.Clientset {
	client := kubefake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
		&corev1.ServiceAccount{
			ObjectMeta:       metav1.ObjectMeta{Namespace: "team", Name: "trainer"},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "linked"}},
		},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "trainer"}})
	tokens, secrets := 0, 0
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "token" {
			return false, nil, nil
		}
		tokens++
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
			Token: fmt.Sprintf("token-%d", tokens), ExpirationTimestamp: metav1.NewTime(time.Now().Add(tokenLife)),
		}}, nil
	})
	client.PrependReactor("create", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		secrets++
		secret := action.(clienttesting.CreateAction).GetObject().(*corev1.Secret)
		secret.Name = fmt.Sprintf("%s%d", secret.GenerateName, secrets) // the fake generates no names
		return false, nil, nil
	})
	return client
}

// handleAccounts handles both accounts, and compares the Secret of the user's account and its token.
func handleAccounts(t *testing.T, client *kubefake.Clientset, wantName, wantToken string) {
	t.Helper()
	for _, namespace := range []string{"team", "kube-system"} {
		if again, err := handleAccount(t.Context(), client, Config{Registry: "registry:5000"}, namespace, "trainer"); again > 0 || err != nil {
			t.Fatal(again, err)
		}
	}
	account, err := client.CoreV1().ServiceAccounts("team").Get(t.Context(), "trainer", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantRefs := []corev1.LocalObjectReference{{Name: "linked"}, {Name: wantName}}
	if refs := account.ImagePullSecrets; !slices.Equal(refs, wantRefs) || len(account.Secrets) != 1 ||
		account.Annotations[secretAnnotation] != wantName {
		t.Errorf("pull secrets %v, secrets %v, annotations %v; want %s", refs, account.Secrets, account.Annotations, wantName)
	}
	secrets, err := client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(secrets.Items) != 1 || secrets.Items[0].Name != wantName {
		t.Fatalf("secrets %+v; want %s alone", secrets.Items, wantName)
	}
	content := string(secrets.Items[0].Data[corev1.DockerConfigKey])
	if !strings.Contains(content, "registry:5000") || !strings.Contains(content, wantToken) {
		t.Errorf("%s has %s; want %s, for the registry", wantName, content, wantToken)
	}
}

// TestAccountGetsItsSecret tests that every account of a user's namespace gets one Secret, which its pods pull with,
// and that a deleted Secret is replaced.
func TestAccountGetsItsSecret(t *testing.T) {
	client := newAccounts(tokenLife)
	for range 2 {
		handleAccounts(t, client, "trainer-dockercfg-1", "token-1")
	}
	if err := client.CoreV1().Secrets("team").Delete(t.Context(), "trainer-dockercfg-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	handleAccounts(t, client, "trainer-dockercfg-2", "token-2")
}

// TestTokensAreReplaced tests that a token that expires soon is replaced in its Secret.
func TestTokensAreReplaced(t *testing.T) {
	client := newAccounts(tokenReserve - time.Minute)
	handleAccounts(t, client, "trainer-dockercfg-1", "token-1")
	handleAccounts(t, client, "trainer-dockercfg-1", "token-2")
}

// TestSecretsComeLate tests that a namespace can delay its Secrets.
func TestSecretsComeLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newAccounts(tokenLife)
		young := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "late", Name: "trainer", CreationTimestamp: metav1.Now()}}
		late := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late", Annotations: map[string]string{SecretDelayAnnotation: "40s"}}}
		for _, object := range []runtime.Object{young, late} {
			if err := client.Tracker().Add(object); err != nil {
				t.Fatal(err)
			}
		}
		again, err := handleAccount(t.Context(), client, Config{Registry: "registry:5000"}, "late", "trainer")
		if err != nil || again != 40*time.Second {
			t.Errorf("the next attempt is in %s, %v; want it 40 s after the creation", again, err)
		}
		secrets, err := client.CoreV1().Secrets("late").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(secrets.Items) > 0 {
			t.Errorf("secrets %+v, %v; want none yet", secrets.Items, err)
		}
	})
}
