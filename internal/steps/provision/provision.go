// SPDX-License-Identifier: Apache-2.0

// Package provision creates a training environment and proves that it can be used.
package provision

import (
	"cmp"
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
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// releaseTime bounds the clean-up after a failure; a pod has 30 s between SIGTERM and SIGKILL.
const releaseTime = 25 * time.Second

// askTime bounds the question why the environment was lost.
const askTime = 10 * time.Second

type provisioner struct {
	options Options
	clients *kube.Clients
	holder  lease.Holder
	routes  routeclient.RoutesGetter
	// growing are the claims, by name, that have to grow further once pods mount them, with their mounts. missing are the claims of nodes
	// that the StatefulSet has yet to create.
	growing, missing map[string]objects.Mount
	// hosts are the Routes' hosts, by the Routes' names.
	hosts map[string]string
	// assigned has since when the pods hold GPUs, nil if no receipt needs it.
	assigned *assignments
	request  objects.Request
	// why is the reason for the mode, if this step decided it.
	why string
	log *slog.Logger
	now func() time.Time
}

// Options are the requested environment, and the time for it.
type Options struct {
	// Run is the PipelineRun that gets the environment; without it a person does.
	Run run.Flags
	// ClientCerts is the folder of the mounted client Secret that an earlier run of this step created, "" for none.
	ClientCerts string
	// Request has the cluster file. Run decides its Namespace, Mode and Services.
	Request objects.Request
	// Mode is auto, tcp or rdma. RequestedMode is the one that was asked for before preflight decided, empty for Mode: if it is
	// auto, nodes that turn out to be unable to use RDMA use TCP.
	Mode, RequestedMode agent.Mode
	// Services are the names of programs on node 0, as objects.ParseServices takes them.
	Services string
	// StartTimeout is the time for all nodes to start, waiting for a busy environment included.
	StartTimeout time.Duration
	// OnBusy is fail or wait: what to do if another run or user holds the environment.
	OnBusy string
	// OnChange is fail or recreate: what to do if the environment exists and differs.
	OnChange string
	// TrainingTimeout is the time of a training, for which the PipelineRun must last; 0 for none.
	TrainingTimeout time.Duration
	// KeepFor is how long the lease lasts; 0 for as long as steps renew it.
	KeepFor time.Duration
	// IdleTimeout is how long a person's environment may be unused before the reaper releases it, as param.IdleTimeout; 0 for ever, ""
	// for the cluster file's.
	IdleTimeout string
}

// Deps are what Run works with. The environment is created in the clients' namespace.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
}

// Result is the environment that can be used now.
type Result struct {
	Name string
	Mode agent.Mode
	// Why is the reason for the mode, empty if it was given.
	Why     string
	Storage cluster.StorageMode
	Nodes   int
	// Constraint is the security context constraint that admitted the pods, "" on a cluster that has none.
	Constraint string
	// ImageDigest is the training image by digest.
	ImageDigest string
	Services    []agent.ServiceStatus
}

// Run creates the environment and waits until it can be used. If it fails or its context ends, it releases what it
// created; an environment that could be used before stays. It checks the whole request before it asks the cluster.
func Run(ctx context.Context, d Deps, o Options) (result Result, err error) {
	assigned := &assignments{began: d.Clients.Now()}
	kept := receipt.NewWriter(ctx, d.Clients, d.Log, o.Run, o.Request.Name)
	defer func() {
		kept.End(ctx, err, func(p *receipt.Entry) {
			p.Mode, p.ModeReason, p.Storage, p.Image = result.Mode, result.Why, result.Storage, result.ImageDigest
			p.Constraint = result.Constraint
			p.Nodes, p.GPUs = result.Nodes, assigned.gpus(d.Clients.Now())
		})
	}()
	request, err := o.request(d.Clients.Namespace)
	if err != nil {
		return Result{}, err
	}
	routes, err := routeclient.NewForConfig(d.Clients.Config)
	if err != nil {
		return Result{}, fail.Becausef(fail.InvalidInput, "creating a client for Routes: %w", err)
	}
	p := &provisioner{options: o, clients: d.Clients, request: request, log: d.Log, now: d.Clients.Now,
		routes: routes, hosts: map[string]string{}, assigned: assigned}
	return p.run(ctx)
}

func (p *provisioner) environment() env.Environment { return env.Of(p.clients, p.request.Name) }

func (p *provisioner) lease() lease.Client { return p.environment().Lease(p.log) }

func (o *Options) request(namespace string) (objects.Request, error) {
	request := o.Request
	request.Namespace, request.Mode = namespace, o.Mode
	if o.Mode != agent.RDMA {
		request.Mode = agent.TCP // for auto until it is decided
	}
	request.Services = objects.ParseServices(o.Services)
	request = request.WithDefaults()
	return request, request.Validate()
}

// MayIdle returns how long a person's environment may be unused before it is released, 0 for ever.
func (o *Options) MayIdle() time.Duration {
	if timeout, err := time.ParseDuration(o.IdleTimeout); err == nil {
		return timeout
	}
	return time.Duration(o.Request.Cluster.Development.IdleTimeout)
}

func (p *provisioner) leaseRequest() lease.Request {
	r := lease.Request{Holder: p.holder, Duration: cmp.Or(p.options.KeepFor, lease.Duration), IdleTimeout: p.options.MayIdle()}
	if p.options.Run.UID != "" {
		owner := run.OwnerReference(p.options.Run.Name, types.UID(p.options.Run.UID))
		r.Owner = &owner
	}
	return r
}

// findHolder sets holder to the PipelineRun, or to the person at the keyboard.
func (p *provisioner) findHolder(ctx context.Context) (err error) {
	p.holder = lease.Holder{ID: p.options.Run.UID, Display: p.options.Run.Name, Run: true}
	if p.options.Run.UID == "" {
		p.holder, err = lease.Person(ctx, p.clients.Kube)
	}
	return err
}

func (p *provisioner) run(ctx context.Context) (Result, error) {
	if err := errors.Join(p.checkTarget(ctx), p.findHolder(ctx)); err != nil {
		return Result{}, err
	}
	p.decideMode(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, p.options.StartTimeout,
		fmt.Errorf("the start-timeout of %s has passed", p.options.StartTimeout))
	defer cancel()
	began := time.Now()
	take := p.lease().Acquire
	if p.options.OnBusy == "wait" {
		take = p.lease().AcquireWhenFree
	}
	held, err := take(ctx, p.leaseRequest())
	if err != nil {
		if held == nil {
			return Result{}, err
		}
		return Result{}, errors.Join(err, p.release(ctx, held))
	}
	p.log.Debug(fmt.Sprintf("The lease of environment %s/%s is held by %s.", p.request.Namespace, p.request.Name, p.holder))
	stopRenewing := held.Renewing(ctx)
	defer stopRenewing()
	working, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	go func() {
		if err := held.WaitLost(working); isLost(err) {
			lose(err)
		}
	}()
	result, usable, err := p.make(working, held)
	if lost := context.Cause(working); isLost(lost) {
		// Nothing is left to release: the objects are deleted with their Lease.
		err, usable = p.whyLost(ctx, lost), true
	}
	if err != nil {
		stopRenewing()
		if usable {
			return Result{}, err
		}
		return Result{}, errors.Join(err, p.release(ctx, held))
	}
	p.log.Info(fmt.Sprintf("Environment %s/%s is ready after %.1f s: %s, %s each, storage %s, mode %s.",
		p.request.Namespace, p.request.Name, time.Since(began).Seconds(), humanize.Count(p.request.Nodes, "node"),
		humanize.Count(p.request.GPUs(), "GPU"), p.request.Storage, p.request.Mode), "event", "environment-ready", "namespace",
		p.request.Namespace, "environment", p.request.Name, "seconds", time.Since(began).Seconds(), "nodes", p.request.Nodes, "gpusPerNode",
		p.request.GPUs(), "storage", p.request.Storage, "mode", p.request.Mode)
	p.logServices(result.Services)
	return result, nil
}

// whyLost returns the error of an environment that was lost: a run that is deleted or cancelled outright takes it with it.
func (p *provisioner) whyLost(ctx context.Context, lost error) error {
	if of := p.options.Run; of.UID != "" {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
		defer cancel()
		ending, err := run.EndingOf(asking, p.clients.Tekton, p.clients.Namespace, of.Name, types.UID(of.UID), of.Task, p.now())
		if err == nil && ending.Cause.EndsWork() {
			reason, message := receipt.ReasonOf(ending)
			return fail.Becausef(reason, "provisioning environment %s/%s: %s", p.request.Namespace, p.request.Name, message)
		}
	}
	return fail.Advise(lost, "provision it again; mlenv down, the reaper and oc delete release environments")
}

// isLost reports whether the Lease was deleted or taken after this step took it.
func isLost(err error) bool { return fail.ReasonOf(err) == fail.EnvironmentMissing }

// decideMode decides mode auto, which in a pipeline preflight has decided before, by what the API shows.
func (p *provisioner) decideMode(ctx context.Context) {
	if p.options.Mode != agent.Auto || !p.request.Cluster.Network.RDMA.Enabled {
		return
	}
	report := preflight.Examine(ctx, preflight.Deps{Clients: p.clients}, preflight.Options{Request: p.request, Mode: agent.Auto})
	mode, why := report.Mode()
	p.request.Mode, p.why = mode, why
	p.log.Info(fmt.Sprintf("Mode %s because %s. (mlenv preflight shows every check.)", mode, why), "event", "mode", "mode", mode, "why", why)
}

// lockMemory lets the pods register memory by a constraint of the cluster if they could not do so otherwise. An environment keeps what
// it was created with.
func (p *provisioner) lockMemory(ctx context.Context, live *appsv1.StatefulSet) {
	if p.request.Mode != agent.RDMA {
		return
	}
	if live != nil && live.Annotations[objects.ModeAnnotation] == string(agent.RDMA) {
		security := &p.request.Cluster.Security
		security.IPCLock = security.IPCLock || objects.AsksIPCLock(&live.Spec.Template.Spec)
		return
	}
	request, why, err := preflight.LockMemory(ctx, p.clients, p.request)
	p.request = request
	switch {
	case err != nil && !request.Cluster.Security.IPCLock:
		p.log.Warn(fmt.Sprintf("Whether the pods can lock memory is unknown, and they ask for no capability: %v", err))
	case why != "":
		p.log.Info("Locked memory: "+why+".", "event", "ipc-lock", "why", why)
	}
}

// checkTarget refuses a wrong cluster, and a run whose timeouts are too short.
func (p *provisioner) checkTarget(ctx context.Context) error {
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
	needs := run.Needs{Start: p.options.StartTimeout, Training: p.options.TrainingTimeout, Grace: p.request.StopGrace,
		Teardown: run.TeardownTime}
	if p.options.KeepFor > 0 {
		// The ranks of a kept environment have their time while the finally task runs.
		needs.Training, needs.Grace = 0, 0
		needs.Teardown = p.options.KeepFor + run.TeardownTime + max(0, p.request.StopGrace-agent.DefaultStopGrace)
	}
	return run.CheckTimeouts(r, needs, p.now())
}

// release deletes the environment, except its claims.
func (p *provisioner) release(ctx context.Context, held *lease.Hold) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	p.log.Info(fmt.Sprintf("Releasing environment %s/%s.", p.request.Namespace, p.request.Name))
	if err := p.environment().Release(ctx, p.log, held.UID()); err != nil {
		return err
	}
	return p.environment().WaitGone(ctx, func([]*corev1.Pod) {})
}

// make applies the objects and waits for the nodes. usable reports whether an environment that could be used before
// is unchanged; after an error it is also true if that is not known.
func (p *provisioner) make(ctx context.Context, held *lease.Hold) (result Result, usable bool, err error) {
	live, err := p.live(ctx, held)
	if err != nil {
		// A StatefulSet of another creator does not belong to this Lease.
		return Result{}, fail.ReasonOf(err) != fail.EnvironmentDiffers, err
	}
	if usable, err = p.runs(ctx, live); err != nil {
		return Result{}, true, err
	}
	if err := p.decideStorage(ctx, held, live); err != nil {
		return Result{}, usable, err
	}
	p.lockMemory(ctx, live)
	if p.request.RackLevel = p.rackLevel(ctx, live); p.request.RackLevel != "" {
		p.log.Info(fmt.Sprintf("Kueue is asked for nodes with the same value of label %s.", p.request.RackLevel))
	}
	certs, credentials, err := p.certificates(ctx, live)
	if err != nil {
		return Result{}, usable, err
	}
	pods, changed, err := p.start(ctx, held, live, certs, credentials)
	usable = usable && !changed
	if fail.ReasonOf(err) == fail.RDMAUnavailable && p.modeIsOpen() {
		p.useTCP(err)
		p.options.OnChange, changed = "recreate", true // another mode needs new pods
		if live, err = p.live(ctx, held); err == nil {
			pods, changed, err = p.start(ctx, held, live, certs, credentials)
		}
	}
	usable = usable && !changed
	if err != nil {
		return Result{}, usable, err
	}
	if err := p.checkNodes(ctx, credentials); err != nil {
		return Result{}, usable, err
	}
	p.beginUse(ctx, credentials)
	return Result{
		Name: p.request.Name, Mode: p.request.Mode, Why: p.why, Storage: p.request.Storage, Nodes: p.request.Nodes,
		ImageDigest: digest(pods, p.request.Image), Constraint: pods[0].Annotations[objects.AdmittedByAnnotation],
		Services: p.waitServices(ctx, credentials),
	}, usable, nil
}

func (p *provisioner) queue() kueue.Queue {
	return kueue.Queue{Namespace: p.request.Namespace, Name: p.request.Queue}
}

// rackLevel returns the queue's rack level. An environment keeps the one that it was created with: if the template of pods that wait
// in the queue changes, Kueue lets them go.
func (p *provisioner) rackLevel(ctx context.Context, live *appsv1.StatefulSet) string {
	if live != nil && live.Labels[kueue.QueueLabel] == p.request.Queue {
		return live.Spec.Template.Annotations[kueue.TopologyAnnotation]
	}
	return p.queue().RackLevel(ctx, p.clients.Kube)
}

// start applies the objects of the request and waits for the nodes. changed reports whether the existing environment is no
// longer what it was.
func (p *provisioner) start(ctx context.Context, held *lease.Hold, live *appsv1.StatefulSet, certs objects.Certificates,
	credentials agent.Credentials) (pods []*corev1.Pod, changed bool, err error) {
	want, err := objects.Build(p.request, held.OwnerReference(), certs)
	if err != nil {
		return nil, false, err
	}
	if err := p.applyServiceAccount(ctx, want.ServiceAccount); err != nil {
		return nil, false, err
	}
	if err := p.addPullSecrets(ctx, live, want.StatefulSet); err != nil {
		return nil, false, err
	}
	if live != nil {
		if changed, err = p.change(ctx, live, want.StatefulSet, credentials); err != nil {
			return nil, changed, err
		}
	}
	if err := p.apply(ctx, want); err != nil {
		return nil, changed, err
	}
	p.applyPodMonitor(ctx, want.PodMonitor, len(certs.CA) > 0)
	if pods, err = p.waitReady(ctx, credentials, want.StatefulSet); err != nil {
		return nil, changed, err
	}
	return pods, changed, p.finishClaims(ctx)
}

// runs reports whether nodes of the environment run. The StatefulSet's status is some seconds behind its pods.
func (p *provisioner) runs(ctx context.Context, live *appsv1.StatefulSet) (bool, error) {
	if live == nil || live.Status.ReadyReplicas > 0 {
		return live != nil, nil
	}
	pods, err := p.environment().Pods(ctx)
	if err != nil {
		return false, kube.Problem(err)
	}
	return slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return running(&pod) }), nil
}

func running(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// digest returns the image that the nodes run, by digest if that is known.
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

// live returns the environment's StatefulSet, nil if this Lease owns none. A StatefulSet of another owner is an error.
func (p *provisioner) live(ctx context.Context, held *lease.Hold) (*appsv1.StatefulSet, error) {
	e := p.environment()
	found, err := e.StatefulSet(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting statefulset %s: %w", e, err))
	}
	if slices.ContainsFunc(found.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == held.UID() }) {
		return found, nil
	}
	return nil, p.foreign("statefulset", e.Names.StatefulSet)
}

// foreign returns the error for an object of another owner whose name the environment needs.
func (p *provisioner) foreign(kind, name string) error {
	return fail.Advise(fail.Becausef(fail.EnvironmentDiffers, "creating environment %s/%s: there is a %s %s that ml-dev-env did not create",
		p.request.Namespace, p.request.Name, kind, name),
		"choose another --name, or delete it: oc delete %s %s -n %s", kind, name, p.request.Namespace)
}

// apply applies all objects except the ServiceAccount, which exists by now. Of existing claims only the size changes, and only to a
// larger one.
func (p *provisioner) apply(ctx context.Context, want objects.Objects) error {
	if err := p.applyServices(ctx, want.Services); err != nil {
		return err
	}
	for _, object := range want.InOrder() {
		var err error
		switch o := object.(type) {
		case *corev1.ServiceAccount:
		case *corev1.PersistentVolumeClaim:
			err = p.applyClaim(ctx, o)
		case *appsv1.StatefulSet:
			// Before the pods: some file systems grow only when a pod mounts them.
			if err = p.expandClaims(ctx); err == nil {
				err = kube.Apply(ctx, p.clients.Kube, o)
			}
		default:
			err = kube.Apply(ctx, p.clients.Kube, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// applyServiceAccount leaves an administrator's account as it is. Our own keeps the Leases of other environments among
// its owners.
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

// applyClaim adopts an existing claim as it is, because it contains users' data.
func (p *provisioner) applyClaim(ctx context.Context, want *corev1.PersistentVolumeClaim) error {
	found, err := p.clients.Kube.CoreV1().PersistentVolumeClaims(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return kube.Apply(ctx, p.clients.Kube, want)
	} else if err != nil {
		return kube.Problem(fmt.Errorf("getting claim %s/%s: %w", want.Namespace, want.Name, err))
	}
	if found.DeletionTimestamp != nil {
		return fail.Advise(fail.Becausef(fail.ClaimUnbound, "using claim %s/%s: it is being deleted since %s", want.Namespace, want.Name,
			found.DeletionTimestamp),
			"wait until it is gone, or see what uses it: oc describe pvc %s -n %s", want.Name, want.Namespace)
	}
	if !objects.IsShared(found) && p.request.Nodes > 1 {
		return fail.Advise(fail.Becausef(fail.EnvironmentDiffers, "using claim %s/%s for %d nodes: its access modes are %v, want ReadWriteMany",
			want.Namespace, want.Name, p.request.Nodes, found.Spec.AccessModes),
			"use --storage=volumeClaimTemplates, another --name, or another claim in the cluster file")
	}
	if objects.IsBlock(found) {
		block := fail.Becausef(fail.EnvironmentDiffers, "using claim %s/%s: its volume mode is Block, want Filesystem", want.Namespace, want.Name)
		return fail.Advise(block,
			"name another claim in the cluster file, or use another --name")
	}
	p.log.Debug(fmt.Sprintf("Claim %s exists with %s and is used.", want.Name, kube.ClaimSize(found)))
	return nil
}
