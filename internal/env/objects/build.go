// SPDX-License-Identifier: Apache-2.0

// Package objects computes the Kubernetes objects of an environment. It never talks to a cluster.
package objects

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Objects has all objects of an environment except its Lease.
type Objects struct {
	// ServiceAccount has the cluster file's name. The environments of a namespace share it, so it has no label of one
	// environment, and each adds its Lease to the owners. An account without our labels must stay as it is.
	ServiceAccount *corev1.ServiceAccount
	// Secrets are the server's, the client's and, with a PodMonitor, Prometheus'; none if the cluster has the certificates.
	Secrets []*corev1.Secret
	// Use has the certificate with which the reaper, which may read no Secret, asks when the environment was used last. It opens nothing
	// else. It is nil if the request has none.
	Use *corev1.ConfigMap
	// Claims exist in mode rwx only. They have no owner and outlive the environment; an existing one is used as it is.
	Claims      []*corev1.PersistentVolumeClaim
	Service     *corev1.Service
	StatefulSet *appsv1.StatefulSet
	// PodMonitor is nil unless the cluster file asks for it. It is applied separately: not every cluster has the kind.
	PodMonitor *unstructured.Unstructured
	// Services are applied separately, before the pods, which mount their Secret.
	Services ServiceObjects
}

// Object is any object of an environment.
type Object interface {
	metav1.Object
	runtime.Object
}

// InOrder returns the objects, except the services' objects, in the order in which to apply them: the pods come last.
func (o Objects) InOrder() []Object {
	objects := []Object{o.ServiceAccount}
	for _, secret := range o.Secrets {
		objects = append(objects, secret)
	}
	if o.Use != nil {
		objects = append(objects, o.Use)
	}
	for _, claim := range o.Claims {
		objects = append(objects, claim)
	}
	return append(objects, o.Service, o.StatefulSet)
}

// LeaseReference returns the Lease as an owner of the other objects. It does not block the Lease's deletion, which would need
// the right to update its finalizers.
func LeaseReference(lease string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Name: lease, UID: uid, BlockOwnerDeletion: new(false)}
}

// Build computes the requested objects, owned by the Lease of a LeaseReference. Errors: InvalidInput, also for storage mode auto.
func Build(r Request, lease metav1.OwnerReference, certs Certificates) (Objects, error) {
	if err := r.Validate(); err != nil {
		return Objects{}, err
	}
	if r.Storage == cluster.AutoStorage {
		return Objects{}, fail.Becausef(fail.InvalidInput, "building environment %s: storage mode auto: want it decided: rwx or "+
			"volumeClaimTemplates", r.Name)
	}
	b := builder{Request: r, names: r.Names(), lease: lease}
	return Objects{
		ServiceAccount: b.serviceAccount(),
		Secrets:        b.secrets(certs),
		Use:            b.useConfig(certs),
		Claims:         b.claims(),
		Service:        b.service(),
		StatefulSet:    b.statefulSet(),
		PodMonitor:     b.podMonitor(),
		Services:       b.servicesAll(),
	}, nil
}

// BuildServices computes the objects of the requested services alone, owned by the Lease of a LeaseReference. Of the request it needs
// the names of environment, namespace and services.
func BuildServices(r Request, lease metav1.OwnerReference) ServiceObjects {
	return builder{Request: r, names: r.Names(), lease: lease}.servicesAll()
}

type builder struct {
	Request
	names names.Names
	lease metav1.OwnerReference
}

// ownedMeta returns the metadata of all objects except claims.
func (b builder) ownedMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: b.Namespace, Labels: Labels(b.Name), OwnerReferences: []metav1.OwnerReference{b.lease},
	}
}

func (b builder) serviceAccount() *corev1.ServiceAccount {
	meta := b.ownedMeta(b.Cluster.Security.ServiceAccount)
	delete(meta.Labels, EnvironmentLabel)
	return &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: meta,
	}
}

func (b builder) secrets(certs Certificates) []*corev1.Secret {
	if len(certs.CA) == 0 {
		return nil
	}
	secret := func(name string, cert, key []byte) *corev1.Secret {
		return &corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: b.ownedMeta(name),
			Type:       corev1.SecretTypeTLS,
			Data:       map[string][]byte{caKey: certs.CA, corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
		}
	}
	secrets := []*corev1.Secret{
		secret(b.names.ServerSecret, certs.ServerCert, certs.ServerKey),
		secret(b.names.ClientSecret, certs.ClientCert, certs.ClientKey),
	}
	if b.Cluster.Monitoring.PodMonitor {
		secrets = append(secrets, secret(b.names.MetricsSecret, certs.MetricsCert, certs.MetricsKey))
	}
	return secrets
}

// caKey is the key of the CA in the Secrets.
const caKey = "ca.crt"

func (b builder) useConfig(certs Certificates) *corev1.ConfigMap {
	if len(certs.ReaperCert) == 0 {
		return nil
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: b.ownedMeta(b.names.UseConfig),
		Data: map[string]string{caKey: string(certs.CA), corev1.TLSCertKey: string(certs.ReaperCert),
			corev1.TLSPrivateKeyKey: string(certs.ReaperKey)},
	}
}

func (b builder) claims() []*corev1.PersistentVolumeClaim {
	if b.Storage != cluster.SharedStorage {
		return nil
	}
	var claims []*corev1.PersistentVolumeClaim
	for _, m := range b.Mounts() {
		shared := b.buildClaim(m.Claim, m.Size, corev1.ReadWriteMany, b.Cluster.Storage.ClassRWX)
		shared.Namespace = b.Namespace
		claims = append(claims, &shared)
	}
	return claims
}

// buildClaim has no owner, because it contains users' work.
func (b builder) buildClaim(name string, size resource.Quantity, access corev1.PersistentVolumeAccessMode,
	class string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: Labels(b.Name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{access},
			StorageClassName: &class,
			VolumeMode:       new(corev1.PersistentVolumeFilesystem),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: size},
			},
		},
	}
}

func servicePort(name string, number int) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: int32(number), TargetPort: intstr.FromString(name), Protocol: corev1.ProtocolTCP}
}

// agentPort is the name of the agents' port.
const agentPort = "agent"

func servicePorts() (all []corev1.ServicePort) {
	for _, s := range agent.Services() {
		all = append(all, servicePort(s.Name, s.Port))
	}
	return append(all, servicePort("debugpy", agent.DebugPort), servicePort("master", agent.MasterPort), servicePort(agentPort, agent.Port))
}

// service gives the nodes their names before they are ready: they look each other up while they start.
func (b builder) service() *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: b.ownedMeta(b.names.Service),
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true, Selector: names.Selector(b.Name),
			Ports: servicePorts()},
	}
}

// Certificates are the keys of one environment, in PEM. The zero value stands for those that the cluster has already.
type Certificates struct {
	// CA signed the others; its key is discarded.
	CA []byte
	// ServerCert and ServerKey are the agents', of all nodes.
	ServerCert, ServerKey []byte
	ClientCert, ClientKey []byte
	// MetricsCert and MetricsKey are for Prometheus.
	MetricsCert, MetricsKey []byte
	// ReaperCert and ReaperKey only show when the environment was used last; they are empty for an environment that is not released for
	// want of use.
	ReaperCert, ReaperKey []byte
}
