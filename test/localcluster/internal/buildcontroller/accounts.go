package buildcontroller

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
)

// tokenLife is longer than any cluster of this kind.
const tokenLife = 365 * 24 * time.Hour

// accountAnnotation is on the secret that this controller made for an account.
const accountAnnotation = "openshift.io/internal-registry-auth-token.service-account"

// ordinary namespaces are the users'.
func ordinary(namespace string) bool {
	return namespace != "default" && !strings.HasPrefix(namespace, "kube-") &&
		!strings.HasPrefix(namespace, "openshift") && !strings.HasPrefix(namespace, "tekton-")
}

// handleNamespace gives a namespace the service account `builder`, the secret
// by which it pushes and pulls, and the right to. The right is given once: who
// takes it away makes the registry refuse the namespace's builds.
func handleNamespace(ctx context.Context, client kubernetes.Interface, registry, name string) error {
	if !ordinary(name) {
		return nil
	}
	ns, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || ns.DeletionTimestamp != nil {
		return err
	}
	accounts := client.CoreV1().ServiceAccounts(name)
	account, err := accounts.Get(ctx, buildapi.BuilderAccount, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if err := grant(ctx, client, name); err != nil {
			return err
		}
		account, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: buildapi.BuilderAccount}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	return ensureSecret(ctx, client, registry, account)
}

// grant binds the roles that OpenShift binds in every namespace.
func grant(ctx context.Context, client kubernetes.Interface, namespace string) error {
	for role, subject := range map[string]rbacv1.Subject{
		"system:image-builder": {Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: buildapi.BuilderAccount},
		"system:image-puller":  {APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + namespace},
	} {
		_, err := client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role + "s"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{subject},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// ensureSecret makes the account's secret for the registry, unless it has one.
func ensureSecret(ctx context.Context, client kubernetes.Interface, registry string, account *corev1.ServiceAccount) error {
	secrets := client.CoreV1().Secrets(account.Namespace)
	for _, ref := range account.Secrets {
		secret, err := secrets.Get(ctx, ref.Name, metav1.GetOptions{})
		if err == nil && secret.Type == corev1.SecretTypeDockercfg {
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	seconds := int64(tokenLife.Seconds())
	token, err := client.CoreV1().ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	content, err := json.Marshal(map[string]any{
		registry: map[string]string{"username": "serviceaccount", "password": token.Status.Token, "email": "serviceaccount@example.org"},
	})
	if err != nil {
		return err
	}
	secret, err := secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: account.Name + "-dockercfg-",
			Annotations:  map[string]string{accountAnnotation: account.Name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "ServiceAccount", Name: account.Name, UID: account.UID,
			}},
		},
		Type: corev1.SecretTypeDockercfg,
		Data: map[string][]byte{corev1.DockerConfigKey: content},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	account = account.DeepCopy()
	account.Secrets = append(account.Secrets, corev1.ObjectReference{Name: secret.Name})
	account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: secret.Name})
	if _, err := client.CoreV1().ServiceAccounts(account.Namespace).Update(ctx, account, metav1.UpdateOptions{}); err != nil {
		// The next attempt makes another.
		return errors.Join(err, secrets.Delete(ctx, secret.Name, metav1.DeleteOptions{}))
	}
	return nil
}
