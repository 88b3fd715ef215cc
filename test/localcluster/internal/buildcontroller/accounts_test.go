package buildcontroller

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestAccountGetsItsSecret: every account of a user's namespace gets one Secret, which its pods pull with.
func TestAccountGetsItsSecret(t *testing.T) {
	client := kubefake.NewClientset(
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "trainer"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "trainer"}})
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetSubresource() == "token", &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: "t"}}, nil
	})
	client.PrependReactor("create", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		secret := action.(clienttesting.CreateAction).GetObject().(*corev1.Secret)
		secret.Name = secret.GenerateName + "1" // the fake makes no names
		return false, nil, nil
	})
	for range 2 {
		for _, namespace := range []string{"team", "kube-system"} {
			if err := handleAccount(t.Context(), client, "registry:5000", namespace, "trainer"); err != nil {
				t.Fatal(err)
			}
		}
	}
	account, err := client.CoreV1().ServiceAccounts("team").Get(t.Context(), "trainer", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const name = "trainer-dockercfg-1"
	if refs := account.ImagePullSecrets; len(refs) != 1 || refs[0].Name != name || account.Annotations[secretAnnotation] != name {
		t.Errorf("pull secrets %v, annotations %v; want %s", refs, account.Annotations, name)
	}
	secrets, err := client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(secrets.Items) != 1 || !strings.Contains(string(secrets.Items[0].Data[corev1.DockerConfigKey]), "registry:5000") {
		t.Errorf("secrets %+v; want one, for the registry", secrets.Items)
	}
}
