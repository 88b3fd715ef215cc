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

// secretDelay is how long after its creation an account gets its Secret. A pod that is created before has none.
const secretDelay = time.Second

// secretAnnotation is on an account and names its Secret, as on OpenShift since 4.16.
const secretAnnotation = "openshift.io/internal-registry-pull-secret-ref"

// accountAnnotation marks the secret that this controller created for an account.
const accountAnnotation = "openshift.io/internal-registry-auth-token.service-account"

// ordinary reports whether a namespace belongs to users.
func ordinary(namespace string) bool {
	return namespace != "default" && !strings.HasPrefix(namespace, "kube-") &&
		!strings.HasPrefix(namespace, "openshift") && !strings.HasPrefix(namespace, "tekton-")
}

// pullSecret is the Secret in every namespace with the registry's credentials of service account default, which may
// only pull. OpenShift's has a random name; this name is known, so that a cluster file can contain it.
const pullSecret = "registry-pull"

// handleNamespace creates the service account `builder` with its right to push, and the secrets with which it and the
// account `default` use the registry. It grants the right only once: if a user removes it, the registry refuses the
// namespace's builds.
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
	builder, err := ensureAccount(ctx, client, name, buildapi.BuilderAccount, func() error { return grant(ctx, client, name) })
	if err != nil {
		return err
	}
	puller, err := ensureAccount(ctx, client, name, "default", func() error { return nil })
	if err != nil {
		return err
	}
	return errors.Join(
		ensureSecret(ctx, client, registry, builder, metav1.ObjectMeta{GenerateName: builder.Name + "-dockercfg-"}),
		ensureSecret(ctx, client, registry, puller, metav1.ObjectMeta{Name: pullSecret}))
}

// handleAccount gives a user's account its Secret.
func handleAccount(ctx context.Context, client kubernetes.Interface, registry, namespace, name string) error {
	if !ordinary(namespace) || name == "default" {
		return nil
	}
	account, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || account.DeletionTimestamp != nil {
		return err
	}
	err = ensureSecret(ctx, client, registry, account, metav1.ObjectMeta{GenerateName: name + "-dockercfg-"})
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // it was deleted meanwhile
	}
	return err
}

// ensureAccount returns the service account. If it is missing, ensureAccount creates it, after before has succeeded.
func ensureAccount(ctx context.Context, client kubernetes.Interface, namespace, name string, before func() error) (*corev1.ServiceAccount, error) {
	accounts := client.CoreV1().ServiceAccounts(namespace)
	account, err := accounts.Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return account, err
	}
	if err := before(); err != nil {
		return nil, err
	}
	return accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
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

// ensureSecret creates the account's secret for the registry, with the name in meta, unless the account has one.
func ensureSecret(ctx context.Context, client kubernetes.Interface, registry string, account *corev1.ServiceAccount, meta metav1.ObjectMeta) error {
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
	meta.Annotations = map[string]string{accountAnnotation: account.Name}
	meta.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ServiceAccount", Name: account.Name, UID: account.UID}}
	secret, err := secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: meta,
		Type:       corev1.SecretTypeDockercfg,
		Data:       map[string][]byte{corev1.DockerConfigKey: content},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	account = account.DeepCopy()
	if account.Annotations == nil {
		account.Annotations = map[string]string{}
	}
	account.Annotations[secretAnnotation] = secret.Name
	account.Secrets = append(account.Secrets, corev1.ObjectReference{Name: secret.Name})
	account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: secret.Name})
	if _, err := client.CoreV1().ServiceAccounts(account.Namespace).Update(ctx, account, metav1.UpdateOptions{}); err != nil {
		// The next attempt creates another one.
		return errors.Join(err, secrets.Delete(ctx, secret.Name, metav1.DeleteOptions{}))
	}
	return nil
}
