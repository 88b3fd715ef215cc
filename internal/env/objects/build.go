// Package objects says which Kubernetes objects an environment is made of. It
// only computes: nothing in it talks to a cluster.
package objects

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Objects are what an environment is made of, beside its Lease.
type Objects struct {
	// ServiceAccount is named by the cluster file, and so shared: by the
	// environments of a namespace, each of which adds its Lease to the owners, and
	// with people, who grant it security context constraints. It hence has no
	// label of one environment. One without our labels belongs to somebody else and
	// must be left as it is.
	ServiceAccount *corev1.ServiceAccount
	// Secrets are the server's and the client's; none where the certificates are
	// in the cluster already.
	Secrets []*corev1.Secret
	// Claims are there in mode rwx only. They have no owner: they outlive the
	// environment, and one that exists is used as it is.
	Claims      []*corev1.PersistentVolumeClaim
	Service     *corev1.Service
	StatefulSet *appsv1.StatefulSet
	// Services are applied by themselves, before the pods, which mount their Secret.
	Services ServiceObjects
}

// Object is any object of an environment.
type Object interface {
	metav1.Object
	runtime.Object
}

// InOrder returns the objects but those of services in the order in which to apply
// them: what pods need comes before the pods.
func (o Objects) InOrder() []Object {
	objects := []Object{o.ServiceAccount}
	for _, secret := range o.Secrets {
		objects = append(objects, secret)
	}
	for _, claim := range o.Claims {
		objects = append(objects, claim)
	}
	return append(objects, o.Service, o.StatefulSet)
}

// LeaseReference is the Lease as an owner of the other objects. It does not block
// the Lease's deletion: that would need the right to update its finalizers.
func LeaseReference(lease string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Name: lease, UID: uid, BlockOwnerDeletion: new(false)}
}

// Build makes the objects that r asks for, owned by the Lease. Errors:
// InvalidInput, also where the storage mode is still auto.
func Build(r Request, lease metav1.OwnerReference, certs Certificates) (Objects, error) {
	r = r.WithDefaults()
	if err := r.Validate(); err != nil {
		return Objects{}, err
	}
	if r.Storage == cluster.AutoStorage {
		return Objects{}, fail.Becausef(fail.InvalidInput, "building environment %s: storage mode auto: want it decided: rwx or volumeClaimTemplates", r.Name)
	}
	// A controller is who makes pods, and blocking the owner's deletion needs a
	// right on OpenShift that no step has.
	lease.Controller, lease.BlockOwnerDeletion = nil, new(false)
	b := builder{Request: r, names: NamesOf(r.Name), lease: lease}
	return Objects{
		ServiceAccount: b.serviceAccount(),
		Secrets:        b.secrets(certs),
		Claims:         b.claims(),
		Service:        b.service(),
		StatefulSet:    b.statefulSet(),
		Services:       ServiceObjects{Secret: b.servicesSecret(), NodeZero: b.nodeZero(), Routes: b.routes()},
	}, nil
}

// builder makes the objects of a checked request that has its defaults.
type builder struct {
	Request
	names Names
	lease metav1.OwnerReference
}

// owned is the metadata of everything but claims.
func (b builder) owned(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: b.Namespace, Labels: Labels(b.Name), OwnerReferences: []metav1.OwnerReference{b.lease},
	}
}

func (b builder) serviceAccount() *corev1.ServiceAccount {
	meta := b.owned(b.Cluster.Security.ServiceAccount)
	delete(meta.Labels, EnvironmentLabel)
	return &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: meta,
	}
}

func (b builder) secrets(certs Certificates) []*corev1.Secret {
	if certs.empty() {
		return nil
	}
	secret := func(name string, cert, key []byte) *corev1.Secret {
		return &corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: b.owned(name),
			Type:       corev1.SecretTypeTLS,
			Data:       map[string][]byte{"ca.crt": certs.CA, corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
		}
	}
	return []*corev1.Secret{
		secret(b.names.ServerSecret, certs.ServerCert, certs.ServerKey),
		secret(b.names.ClientSecret, certs.ClientCert, certs.ClientKey),
	}
}

// claim is one of an environment's two.
type claim struct{ name, size, path string }

func (b builder) claimList() []claim {
	return []claim{
		{b.names.Workspace, b.WorkspaceSize, agent.Workspace},
		{b.names.Datasets, b.DatasetsSize, agent.Datasets},
	}
}

// claims are the shared ones.
func (b builder) claims() []*corev1.PersistentVolumeClaim {
	if b.Storage != cluster.SharedStorage {
		return nil
	}
	var claims []*corev1.PersistentVolumeClaim
	for _, c := range b.claimList() {
		shared := b.claim(c, corev1.ReadWriteMany, b.Cluster.Storage.ClassRWX)
		shared.Namespace = b.Namespace
		claims = append(claims, &shared)
	}
	return claims
}

// claim has no owner: its content is somebody's work.
func (b builder) claim(c claim, access corev1.PersistentVolumeAccessMode, class string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: c.name, Labels: Labels(b.Name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{access},
			StorageClassName: &class,
			VolumeMode:       new(corev1.PersistentVolumeFilesystem),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.size)},
			},
		},
	}
}

// port is one that a node listens on.
type port struct {
	name   string
	number int32
}

func ports() []port {
	all := []port{}
	for _, s := range agent.Services() {
		all = append(all, port{s.Name, int32(s.Port)})
	}
	return append(all, port{"debugpy", agent.DebugPort}, port{"master", agent.MasterPort}, port{"agent", agent.Port})
}

// service gives the nodes names before they are ready: they look for each other
// while they start.
func (b builder) service() *corev1.Service {
	spec := corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true, Selector: Selector(b.Name),
	}
	for _, p := range ports() {
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: p.name, Port: p.number, TargetPort: intstr.FromString(p.name), Protocol: corev1.ProtocolTCP,
		})
	}
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: b.owned(b.names.Service),
		Spec:       spec,
	}
}
