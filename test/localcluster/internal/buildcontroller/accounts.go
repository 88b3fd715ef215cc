// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"context"
	"encoding/json"
	"errors"
	"hash/crc64"
	"math/rand/v2"
	"slices"
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

// tokenLife is the lifetime of the token in an account's Secret. The controller replaces the token in place when 40 %
// of its lifetime remain.
const (
	tokenLife    = time.Hour
	tokenReserve = tokenLife * 4 / 10
)

// An account gets its Secret between secretDelayLeast and secretDelayMost after its creation, unless Config.SecretDelay or its
// namespace's SecretDelayAnnotation fixes the delay. A pod that is created earlier has no such pull secret.
const (
	secretDelayLeast = 500 * time.Millisecond
	secretDelayMost  = 5 * time.Second
)

// SecretDelayAnnotation of a namespace is the time from the creation of its accounts until they get their Secrets.
const SecretDelayAnnotation = "localcluster/pull-secret-delay"

// secretAnnotation is on an account and names its Secret, as on OpenShift since 4.16.
const secretAnnotation = "openshift.io/internal-registry-pull-secret-ref"

// accountAnnotation marks the secret that this controller created for an account, and expiryAnnotation is when its token
// expires.
const (
	accountAnnotation = "openshift.io/internal-registry-auth-token.service-account"
	expiryAnnotation  = "localcluster/token-expires"
)

// ordinary reports whether a namespace belongs to users.
func ordinary(namespace string) bool {
	return namespace != "default" && !strings.HasPrefix(namespace, "kube-") &&
		!strings.HasPrefix(namespace, "openshift") && !strings.HasPrefix(namespace, "tekton-")
}

// pullSecret is the Secret in every namespace with the registry's credentials of service account default, which may
// only pull. OpenShift's has a random name; this name is known, so that a cluster file can contain it.
const pullSecret = "registry-pull"

// handleNamespace creates the service account `builder` with its right to push and its Secret, and the Secret that account default
// gets. It grants the right only once: if a user removes it, the registry refuses the namespace's builds. Both Secrets come at
// once: OpenShift's build controller waits for the first, and the second stands for one that a user has created before.
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
	if puller.Annotations[secretAnnotation] == "" {
		if _, err := newSecret(ctx, client, registry, puller, metav1.ObjectMeta{Name: pullSecret}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return ensureSecret(ctx, client, registry, builder, metav1.ObjectMeta{GenerateName: builder.Name + "-dockercfg-"})
}

// handleAccount gives an account of a user's namespace its Secret. If it is too early, it returns how long to wait.
func handleAccount(ctx context.Context, client kubernetes.Interface, config Config, namespace,
	name string) (again time.Duration, err error) {
	if !ordinary(namespace) || name == buildapi.BuilderAccount {
		return 0, nil
	}
	account, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || account.DeletionTimestamp != nil {
		return 0, err
	}
	delay, err := delayOf(ctx, client, config, account)
	if left := time.Until(account.CreationTimestamp.Add(delay)); err != nil || left > 0 {
		return left, err
	}
	meta := metav1.ObjectMeta{GenerateName: name + "-dockercfg-"}
	if name == "default" {
		meta = metav1.ObjectMeta{Name: pullSecret}
	}
	err = ensureSecret(ctx, client, config.Registry, account, meta)
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return 0, nil // the account was deleted in the meantime
	}
	return 0, err
}

// delayOf returns the delay of an account, the same at each call.
func delayOf(ctx context.Context, client kubernetes.Interface, config Config, account *corev1.ServiceAccount) (time.Duration, error) {
	ns, err := client.CoreV1().Namespaces().Get(ctx, account.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if text, ok := ns.Annotations[SecretDelayAnnotation]; ok {
		return time.ParseDuration(text)
	}
	if config.SecretDelay > 0 {
		return config.SecretDelay, nil
	}
	chance := rand.New(rand.NewPCG(0, crc64.Checksum([]byte(account.UID), crc64.MakeTable(crc64.ISO)))) //nolint:gosec // no secret
	return secretDelayLeast + time.Duration(chance.Int64N(int64(secretDelayMost-secretDelayLeast))), nil
}

// ensureAccount returns the service account. If it is missing, ensureAccount creates it, after before has succeeded.
func ensureAccount(ctx context.Context, client kubernetes.Interface, namespace, name string, before func() error) (
	*corev1.ServiceAccount, error) {
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

// ensureSecret gives the account its Secret for the registry, with the name in meta, and rewrites one whose token expires
// soon. It replaces a Secret that was deleted.
func ensureSecret(ctx context.Context, client kubernetes.Interface, registry string, account *corev1.ServiceAccount,
	meta metav1.ObjectMeta) error {
	secrets := client.CoreV1().Secrets(account.Namespace)
	if name := account.Annotations[secretAnnotation]; name != "" {
		secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil && time.Until(expiry(secret)) > tokenReserve:
			return nil
		case err == nil:
			return fill(ctx, client, registry, account, secret)
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	secret, err := newSecret(ctx, client, registry, account, meta)
	if apierrors.IsAlreadyExists(err) {
		return link(ctx, client, account, meta.Name)
	}
	if err != nil {
		return err
	}
	if err := link(ctx, client, account, secret.Name); err != nil {
		// The next attempt creates another Secret.
		return errors.Join(err, secrets.Delete(ctx, secret.Name, metav1.DeleteOptions{}))
	}
	return nil
}

// newSecret creates a Secret of the account for the registry.
func newSecret(ctx context.Context, client kubernetes.Interface, registry string, account *corev1.ServiceAccount, meta metav1.ObjectMeta) (
	*corev1.Secret, error) {
	secrets := client.CoreV1().Secrets(account.Namespace)
	meta.Annotations = map[string]string{accountAnnotation: account.Name}
	meta.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ServiceAccount", Name: account.Name, UID: account.UID}}
	secret, err := secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: meta,
		Type:       corev1.SecretTypeDockercfg,
		Data:       map[string][]byte{corev1.DockerConfigKey: []byte("{}")},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, client, registry, account, secret); err != nil {
		return nil, errors.Join(err, secrets.Delete(ctx, secret.Name, metav1.DeleteOptions{}))
	}
	return secret, nil
}

// fill writes a new token into the Secret. As on OpenShift, the token is valid only as long as the Secret exists.
func fill(ctx context.Context, client kubernetes.Interface, registry string, account *corev1.ServiceAccount, secret *corev1.Secret) error {
	seconds := int64(tokenLife.Seconds())
	token, err := client.CoreV1().ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	content, err := json.Marshal(map[string]any{
		registry: map[string]string{"username": "serviceaccount", "password": token.Status.Token, "email": "serviceaccount@example.org"},
	})
	if err != nil {
		return err
	}
	secret = secret.DeepCopy()
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[expiryAnnotation] = token.Status.ExpirationTimestamp.UTC().Format(time.RFC3339)
	secret.Data = map[string][]byte{corev1.DockerConfigKey: content}
	_, err = client.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	return err
}

// expiry returns the time at which the token in the Secret expires, the zero time if it is unknown.
func expiry(secret *corev1.Secret) time.Time {
	at, err := time.Parse(time.RFC3339, secret.Annotations[expiryAnnotation])
	if err != nil {
		return time.Time{}
	}
	return at
}

// link adds the Secret to the account, in place of the account's previous Secret.
func link(ctx context.Context, client kubernetes.Interface, account *corev1.ServiceAccount, secret string) error {
	account = account.DeepCopy()
	if account.Annotations == nil {
		account.Annotations = map[string]string{}
	}
	old := account.Annotations[secretAnnotation]
	account.Annotations[secretAnnotation] = secret
	account.Secrets = append(slices.DeleteFunc(account.Secrets, func(ref corev1.ObjectReference) bool {
		return ref.Name == old || ref.Name == secret
	}),
		corev1.ObjectReference{Name: secret})
	account.ImagePullSecrets = append(slices.DeleteFunc(account.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool {
		return ref.Name == old || ref.Name == secret
	}),
		corev1.LocalObjectReference{Name: secret})
	_, err := client.CoreV1().ServiceAccounts(account.Namespace).Update(ctx, account, metav1.UpdateOptions{})
	return err
}
