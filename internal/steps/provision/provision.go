// Package provision makes a training environment and proves that it can be used.
package provision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	routeclient "github.com/openshift/client-go/route/clientset/versioned/typed/route/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// releaseTime bounds the clean-up after a failure; a pod that is told to end has
// 30 s itself.
const releaseTime = 25 * time.Second

type provisioner struct {
	options Options
	clients *kube.Clients
	leases  lease.Client
	routes  routeclient.RoutesGetter
	// hosts are those that Routes were given, by the Routes' names.
	hosts   map[string]string
	request objects.Request
	log     *slog.Logger
	now     func() time.Time
}

// Options say which environment is to be there, and how long everything may take.
type Options struct {
	// Run is the PipelineRun that gets the environment; without it a person does.
	Run run.Flags
	// ClientCerts is the folder of the mounted client Secret that an earlier run of this step made, "" for none.
	ClientCerts string
	// Request has the cluster file. Its Namespace, Mode and Services are decided by Run.
	Request objects.Request
	// Mode is auto, tcp or rdma.
	Mode string
	// Services are the names of programs on node 0, as objects.ParseServices takes them.
	Services string
	// StartTimeout is the time for all nodes to start, waiting for a busy environment included.
	StartTimeout time.Duration
	// OnBusy is fail or wait: what to do if somebody else holds the environment.
	OnBusy string
	// OnChange is fail or recreate: what to do if the environment is there and differs.
	OnChange string
	// TrainingTimeout is the time of a training, for which the PipelineRun must last; 0 for none.
	TrainingTimeout time.Duration
	// KeepFor is how long the lease lasts; 0 for as long as steps renew it.
	KeepFor time.Duration
}

// Deps are what Run works with. The environment is made in the clients' namespace.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
}

// Result is the environment that can be used now.
type Result struct {
	Name    string
	Mode    objects.Mode
	Storage cluster.StorageMode
	Nodes   int
	// ImageDigest is the training image by digest.
	ImageDigest string
	Services    []agent.ServiceStatus
}

// Run makes the environment and waits until it can be used. Where it fails, or is told to
// end, what it made is released; an environment that could be used before is left as it was.
// The whole request is checked before anything is asked of the cluster.
func Run(ctx context.Context, d Deps, o Options) (Result, error) {
	request, err := o.request(d.Clients.Namespace)
	if err != nil {
		return Result{}, err
	}
	routes, err := routeclient.NewForConfig(d.Clients.Config)
	if err != nil {
		return Result{}, inputError("making a client for Routes: %w", err)
	}
	p := &provisioner{
		options: o, clients: d.Clients, request: request, log: d.Log, now: time.Now, routes: routes, hosts: map[string]string{},
		leases: lease.Client{Kube: d.Clients.Kube, Tekton: d.Clients.Tekton, Namespace: d.Clients.Namespace, Now: time.Now, Log: d.Log},
	}
	return p.run(ctx)
}

// request is what is asked for, with the cluster file's defaults, checked.
func (o *Options) request(namespace string) (objects.Request, error) {
	request := o.Request
	request.Namespace, request.Mode = namespace, objects.Mode(o.Mode)
	if o.Mode == preflight.Auto {
		request.Mode = objects.TCP // until it is decided
	}
	request.Services = objects.ParseServices(o.Services)
	request = request.WithDefaults()
	return request, request.Validate()
}

// holder is the PipelineRun, or the person at the keyboard.
func (o *Options) holder() lease.Holder {
	if o.Run.UID != "" {
		return lease.Holder{ID: o.Run.UID, Display: o.Run.Name, Run: true}
	}
	return lease.Person()
}

func (p *provisioner) leaseRequest() lease.Request {
	r := lease.Request{Name: p.request.Name, Holder: p.options.holder(), Duration: lease.Duration}
	if p.options.KeepFor > 0 {
		r.Duration = p.options.KeepFor
	}
	if p.options.Run.UID != "" {
		owner := run.OwnerReference(p.options.Run.Name, types.UID(p.options.Run.UID))
		r.Owner = &owner
	}
	return r
}

func inputError(format string, args ...any) error {
	return fail.Becausef(fail.InvalidInput, format, args...)
}

func (p *provisioner) run(ctx context.Context) (Result, error) {
	if err := p.checkPlace(ctx); err != nil {
		return Result{}, err
	}
	p.decideMode(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, p.options.StartTimeout, fmt.Errorf("the start-timeout of %s has passed", p.options.StartTimeout))
	defer cancel()
	began := p.now()
	take := p.leases.Take
	if p.options.OnBusy == "wait" {
		take = p.leases.TakeWhenFree
	}
	held, err := take(ctx, p.leaseRequest())
	if err != nil {
		if held == nil {
			return Result{}, err
		}
		return Result{}, errors.Join(err, p.release(ctx, held))
	}
	p.log.Info(fmt.Sprintf("The lease of environment %s/%s is held by %s.", p.request.Namespace, p.request.Name, p.options.holder()), "namespace", p.request.Namespace, "environment", p.request.Name, "holder", p.options.holder().String())
	stopRenewing := held.Renewing(ctx)
	defer stopRenewing()
	result, usable, err := p.make(ctx, held)
	if err != nil {
		stopRenewing()
		if usable {
			return Result{}, err
		}
		return Result{}, errors.Join(err, p.release(ctx, held))
	}
	p.log.Info(fmt.Sprintf("Environment %s/%s is ready after %.1f s: %s, %s each, storage %s, mode %s.",
		p.request.Namespace, p.request.Name, p.now().Sub(began).Seconds(), humanize.Count(p.request.Nodes, "node"), humanize.Count(p.request.GPUsPerNode, "GPU"), p.request.Storage, p.request.Mode), "namespace", p.request.Namespace, "environment", p.request.Name, "seconds", p.now().Sub(began).Seconds(), "nodes", p.request.Nodes, "gpusPerNode", p.request.GPUsPerNode, "storage", p.request.Storage, "mode", p.request.Mode)
	p.sayServices(result.Services)
	return result, nil
}

// decideMode is for who has not asked preflight: in a pipeline it has decided.
func (p *provisioner) decideMode(ctx context.Context) {
	if p.options.Mode != preflight.Auto || !p.request.Cluster.Network.RDMA.Enabled {
		return
	}
	report := preflight.Examine(ctx, preflight.Deps{Clients: p.clients}, preflight.Options{Request: p.request, Mode: preflight.Auto})
	mode, why := report.Mode()
	p.request.Mode = mode
	p.log.Info(fmt.Sprintf("Mode %s because %s. (mlenv preflight shows all that was looked at.)", mode, why), "mode", mode, "why", why)
}

// checkPlace refuses a wrong cluster, and a run that cannot live long enough.
func (p *provisioner) checkPlace(ctx context.Context) error {
	if err := p.clients.CheckCluster(ctx, p.request.Cluster.Cluster.API, p.log); err != nil {
		return err
	}
	if p.options.Run.Name == "" {
		return nil
	}
	r, err := run.Get(ctx, p.clients.Tekton, p.request.Namespace, p.options.Run.Name)
	if err != nil {
		return err
	}
	needs := run.Needs{Start: p.options.StartTimeout, Training: p.options.TrainingTimeout, Teardown: run.TeardownTime}
	if p.options.KeepFor > 0 {
		needs.Training, needs.Teardown = 0, p.options.KeepFor+run.TeardownTime
	}
	return run.CheckTimeouts(r, needs, p.now())
}

// release gives everything back that the environment holds but claims.
func (p *provisioner) release(ctx context.Context, held *lease.Held) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	p.log.Info(fmt.Sprintf("Releasing environment %s/%s.", p.request.Namespace, p.request.Name), "namespace", p.request.Namespace, "environment", p.request.Name)
	if err := p.leases.Delete(ctx, p.request.Name, held.UID()); err != nil {
		return err
	}
	return kube.WaitGone(ctx, p.clients.Kube, p.request.Namespace, objects.Selector(p.request.Name).String(), func([]*corev1.Pod) {})
}

// make applies the objects and waits for the nodes. usable is true while there is,
// as it was before, an environment that can be used; of an error also where that is
// not known.
func (p *provisioner) make(ctx context.Context, held *lease.Held) (result Result, usable bool, err error) {
	live, err := p.live(ctx, held)
	if err != nil {
		// A StatefulSet that is somebody else's is no environment of this Lease.
		return Result{}, fail.ReasonOf(err) != fail.EnvironmentDiffers, err
	}
	if usable, err = p.runs(ctx, live); err != nil {
		return Result{}, true, err
	}
	if err := p.decideStorage(ctx, held, live); err != nil {
		return Result{}, usable, err
	}
	certs, credentials, err := p.certificates(ctx, live)
	if err != nil {
		return Result{}, usable, err
	}
	objects, err := objects.Build(p.request, held.Owner(), certs)
	if err != nil {
		return Result{}, usable, err
	}
	if live != nil {
		changed, err := p.change(ctx, live, objects.StatefulSet, credentials)
		usable = usable && !changed
		if err != nil {
			return Result{}, usable, err
		}
	}
	if err := p.apply(ctx, objects); err != nil {
		return Result{}, usable, err
	}
	pods, err := p.waitReady(ctx, credentials)
	if err != nil {
		return Result{}, usable, err
	}
	if err := p.checkNodes(ctx, credentials); err != nil {
		return Result{}, usable, err
	}
	return Result{
		Name: p.request.Name, Mode: p.request.Mode, Storage: p.request.Storage, Nodes: p.request.Nodes, ImageDigest: digest(pods, p.request.Image),
		Services: p.waitServices(ctx, credentials),
	}, usable, nil
}

// runs is true where nodes of the environment run. The status of the StatefulSet
// says so some seconds after its pods.
func (p *provisioner) runs(ctx context.Context, live *appsv1.StatefulSet) (bool, error) {
	if live == nil || live.Status.ReadyReplicas > 0 {
		return live != nil, nil
	}
	pods, err := p.clients.Kube.CoreV1().Pods(live.Namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.Selector(p.request.Name).String()})
	if err != nil {
		return false, kube.Problem(fmt.Errorf("listing the pods of environment %s/%s: %w", live.Namespace, p.request.Name, err))
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
	}), nil
}

// digest is the image that the nodes really run.
func digest(pods []*corev1.Pod, image string) string {
	for _, pod := range pods {
		for _, status := range pod.Status.ContainerStatuses {
			if id := status.ImageID[strings.LastIndex(status.ImageID, "://")+1:]; strings.Contains(id, "@sha256:") {
				return strings.TrimPrefix(id, "//")
			}
		}
	}
	return image
}

// live is the environment's StatefulSet, if this Lease has one. One that nobody
// made by this program is not touched.
func (p *provisioner) live(ctx context.Context, held *lease.Held) (*appsv1.StatefulSet, error) {
	name := objects.NamesOf(p.request.Name).StatefulSet
	found, err := p.clients.Kube.AppsV1().StatefulSets(p.request.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting statefulset %s/%s: %w", p.request.Namespace, name, err))
	}
	for _, owner := range found.OwnerReferences {
		if owner.UID == held.UID() {
			return found, nil
		}
	}
	return nil, fail.Advise(fail.Becausef(fail.EnvironmentDiffers, "making environment %s/%s: there is a statefulset of that name that ml-dev-env did not make", p.request.Namespace, p.request.Name),
		"choose another --name, or delete it: oc delete statefulset %s -n %s", name, p.request.Namespace)
}

// apply makes all objects. The ServiceAccount may be shared, and claims are
// never changed.
func (p *provisioner) apply(ctx context.Context, objects objects.Objects) error {
	if err := p.applyServiceAccount(ctx, objects.ServiceAccount); err != nil {
		return err
	}
	if err := p.applyServices(ctx, objects.Services); err != nil {
		return err
	}
	for _, object := range objects.InOrder() {
		var err error
		switch o := object.(type) {
		case *corev1.ServiceAccount:
		case *corev1.PersistentVolumeClaim:
			err = p.applyClaim(ctx, o)
		default:
			err = kube.Apply(ctx, p.clients.Kube, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// applyServiceAccount leaves an account that an administrator made as it is, and
// keeps the other environments that live among the owners of ours.
func (p *provisioner) applyServiceAccount(ctx context.Context, want *corev1.ServiceAccount) error {
	found, err := p.clients.Kube.CoreV1().ServiceAccounts(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return kube.Apply(ctx, p.clients.Kube, want)
	case err != nil:
		return kube.Problem(fmt.Errorf("getting serviceaccount %s/%s: %w", want.Namespace, want.Name, err))
	case len(found.OwnerReferences) == 0:
		return nil
	}
	want = want.DeepCopy()
	for _, owner := range found.OwnerReferences {
		other, err := p.clients.Kube.CoordinationV1().Leases(want.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err == nil && other.UID == owner.UID && owner.UID != want.OwnerReferences[0].UID {
			want.OwnerReferences = append(want.OwnerReferences, owner)
		}
	}
	return kube.Apply(ctx, p.clients.Kube, want)
}

// applyClaim adopts what is there: people's data is in it.
func (p *provisioner) applyClaim(ctx context.Context, want *corev1.PersistentVolumeClaim) error {
	found, err := p.clients.Kube.CoreV1().PersistentVolumeClaims(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return kube.Apply(ctx, p.clients.Kube, want)
	} else if err != nil {
		return kube.Problem(fmt.Errorf("getting claim %s/%s: %w", want.Namespace, want.Name, err))
	}
	if found.DeletionTimestamp != nil {
		return fail.Advise(fail.Becausef(fail.ClaimUnbound, "using claim %s/%s: it is being deleted since %s", want.Namespace, want.Name, found.DeletionTimestamp),
			"wait until it is gone, or see what uses it: oc describe pvc %s -n %s", want.Name, want.Namespace)
	}
	if !sharedClaim(found) && p.request.Nodes > 1 {
		return fail.Advise(fail.Becausef(fail.EnvironmentDiffers, "using claim %s/%s for %d nodes: its access modes are %v, want ReadWriteMany", want.Namespace, want.Name, p.request.Nodes, found.Spec.AccessModes),
			"use --storage=volumeClaimTemplates, or another --name")
	}
	had, wants := found.Spec.Resources.Requests[corev1.ResourceStorage], want.Spec.Resources.Requests[corev1.ResourceStorage]
	if had.Cmp(wants) != 0 {
		p.log.Warn(fmt.Sprintf("Claim %s stays as it is with %s; %s was asked for.", want.Name, had.String(), wants.String()), "claim", want.Name, "size", had.String(), "wantedSize", wants.String())
	} else {
		p.log.Info(fmt.Sprintf("Claim %s is there already and is used as it is.", want.Name), "claim", want.Name)
	}
	return nil
}

func sharedClaim(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
}
