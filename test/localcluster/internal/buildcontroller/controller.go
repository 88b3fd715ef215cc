// SPDX-License-Identifier: Apache-2.0

// Package buildcontroller is a stand-in for OpenShift's build controllers: it runs Builds in pods, records the images
// that they push, and creates the service account of builds in each namespace.
//
// The reasons of Builds have the same causes as on OpenShift:
//
//   - Failed, InvalidOutputReference: output to a missing ImageStream, or no internal registry
//   - New, CannotCreateBuildPod: the pod is refused, by a ResourceQuota for example; the event FailedCreate has the explanation
//   - New, CannotRetrieveServiceAccount: spec.serviceAccount was deleted after the Build was created
//   - Pending, MissingPushSecret: output.pushSecret is missing; the build continues when it exists
//   - Error, BuildPodDeleted, BuildPodExists: the pod was deleted; a pod of that name already exists
//   - Error, UnresolvableEnvironmentVariable: valueFrom a missing key
//   - Cancelled, CancelledBuild: status.cancelled; a client of instantiatebinary that disconnects before it has sent its source
//   - Failed, FetchSourceFailed: a body that is no archive
//   - Failed, ManageDockerfileFailed: no Dockerfile, an empty one, an ENV or LABEL without a value, a heredoc without end
//   - Failed, PullBuilderImageFailed: the base is missing, or private and the pull secret missing (three attempts, five seconds
//     apart)
//   - Failed, DockerBuildFailed: a RUN that fails, an unknown instruction, a full disk
//   - Failed, PushImageToRegistryFailed: the registry refuses
//   - Failed, OutOfMemoryKilled: more memory than resources.limits.memory; if the builder survives a killed process, the reason is
//     DockerBuildFailed until the pod has ended
//   - Failed, BuildPodEvicted: more disk than resources.limits.ephemeral-storage; the kubelet checks about once a minute
//   - Failed, GenericBuildFailed: completionDeadlineSeconds is over (the pod's reason is DeadlineExceeded); a heredoc, whose lines
//     are dropped; a ConfigMap or Secret of a volume that does not exist
package buildcontroller

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	buildscheme "github.com/openshift/client-go/build/clientset/versioned/scheme"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
)

// Config has the image of build pods and the registry.
type Config struct {
	// Image is the image of the build pods' containers.
	Image string
	// Registry is the HOST:PORT of the registry of the ImageStreams.
	Registry string
	// SecretDelay is the time from an account's creation until it gets its Secret; 0 is a random one.
	SecretDelay time.Duration
	// Proxies are the variables for the cluster's proxy, which builds get as those of OpenShift do.
	Proxies map[string]string
}

// workers is the number of objects that the controller handles in parallel.
const workers = 4

// DiskSizeAnnotation of a namespace is a quantity: the size of the disk that its builds get. It simulates a node with
// little free space.
const DiskSizeAnnotation = "localcluster/build-disk-size"

type controller struct {
	buildapi.Clients
	config       Config
	instantiator buildapi.Instantiator
	recorder     record.EventRecorder
	queue        workqueue.TypedRateLimitingInterface[key]
}

// key names an object that the controller must handle.
type key struct{ kind, namespace, name string }

// Run runs the controllers until the context ends.
func Run(ctx context.Context, clients buildapi.Clients, config Config) error {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: clients.Kube.CoreV1().Events("")})
	defer broadcaster.Shutdown()
	c := &controller{
		Clients: clients, config: config,
		instantiator: buildapi.Instantiator(clients),
		recorder:     broadcaster.NewRecorder(buildscheme.Scheme, corev1.EventSource{Component: "build-controller"}),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](250*time.Millisecond, 20*time.Second)),
	}
	defer c.queue.ShutDown()
	if err := c.watch(ctx); err != nil {
		return err
	}
	for range workers {
		go c.work(ctx)
	}
	<-ctx.Done()
	return nil
}

// watch queues every object that changes.
func (c *controller) watch(ctx context.Context) error {
	builds, configs, streams := c.Builds.Builds(""), c.Builds.BuildConfigs(""), c.Images.ImageStreams("")
	pods, namespaces := c.Kube.CoreV1().Pods(""), c.Kube.CoreV1().Namespaces()
	accounts, secrets := c.Kube.CoreV1().ServiceAccounts(""), c.Kube.CoreV1().Secrets("")
	for _, w := range []struct {
		object runtime.Object
		list   func(context.Context, metav1.ListOptions) (runtime.Object, error)
		watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
		tweak  func(*metav1.ListOptions)
		seen   func(obj any)
	}{
		{&buildv1.Build{}, lister(builds.List), builds.Watch, nil, c.buildSeen},
		{&buildv1.BuildConfig{}, lister(configs.List), configs.Watch, nil, c.configSeen},
		{&imagev1.ImageStream{}, lister(streams.List), streams.Watch, nil, c.streamSeen},
		{&corev1.Pod{}, lister(pods.List), pods.Watch, func(o *metav1.ListOptions) { o.LabelSelector = buildv1.BuildLabel }, c.podSeen},
		{&corev1.Namespace{}, lister(namespaces.List), namespaces.Watch, nil, c.namespaceSeen},
		{&corev1.ServiceAccount{}, lister(accounts.List), accounts.Watch, nil, c.accountSeen},
		{&corev1.Secret{}, lister(secrets.List), secrets.Watch, func(o *metav1.ListOptions) {
			o.FieldSelector = "type=" + string(corev1.SecretTypeDockercfg)
		}, c.secretSeen},
	} {
		tweak := func(o metav1.ListOptions) metav1.ListOptions {
			if w.tweak != nil {
				w.tweak(&o)
			}
			return o
		}
		informer := cache.NewSharedInformer(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return w.list(ctx, tweak(o)) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return w.watch(ctx, tweak(o))
			},
		}, w.object, 5*time.Minute)
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    w.seen,
			UpdateFunc: func(_, obj any) { w.seen(obj) },
			DeleteFunc: func(obj any) {
				if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = unknown.Obj
				}
				w.seen(obj)
			},
		}); err != nil {
			return err
		}
		go informer.RunWithContext(ctx)
	}
	return nil
}

// lister adapts a typed list function to one that returns any object.
func lister[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) (
	runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) }
}

const (
	kindBuild     = "build"
	kindConfig    = "buildconfig"
	kindStream    = "imagestream"
	kindNamespace = "namespace"
	kindAccount   = "serviceaccount"
)

// buildSeen queues the build and its BuildConfig, because another build may be waiting for this one.
func (c *controller) buildSeen(obj any) {
	build, ok := obj.(*buildv1.Build)
	if !ok {
		return
	}
	c.queue.Add(key{kindBuild, build.Namespace, build.Name})
	if name := configOf(build); name != "" {
		c.queue.Add(key{kindConfig, build.Namespace, name})
	}
}

func (c *controller) configSeen(obj any) {
	if config, ok := obj.(*buildv1.BuildConfig); ok {
		c.queue.Add(key{kindConfig, config.Namespace, config.Name})
	}
}

func (c *controller) streamSeen(obj any) {
	if stream, ok := obj.(*imagev1.ImageStream); ok {
		c.queue.Add(key{kindStream, stream.Namespace, stream.Name})
	}
}

func (c *controller) podSeen(obj any) {
	if pod, ok := obj.(*corev1.Pod); ok {
		if name := pod.Annotations[buildv1.BuildAnnotation]; name != "" {
			c.queue.Add(key{kindBuild, pod.Namespace, name})
		}
	}
}

func (c *controller) namespaceSeen(obj any) {
	if ns, ok := obj.(*corev1.Namespace); ok {
		c.queue.Add(key{kindNamespace, "", ns.Name})
	}
}

func (c *controller) accountSeen(obj any) {
	if account, ok := obj.(*corev1.ServiceAccount); ok {
		c.accountChanged(account.Namespace, account.Name)
	}
}

// secretSeen queues the account of a Secret, which may have been deleted.
func (c *controller) secretSeen(obj any) {
	if secret, ok := obj.(*corev1.Secret); ok {
		if name := secret.Annotations[accountAnnotation]; name != "" {
			c.accountChanged(secret.Namespace, name)
		}
	}
}

// accountChanged queues the account. For builder, it queues the namespace.
func (c *controller) accountChanged(namespace, name string) {
	if name == buildapi.BuilderAccount {
		c.queue.Add(key{kindNamespace, "", namespace})
		return
	}
	c.queue.Add(key{kindAccount, namespace, name})
}

func (c *controller) work(ctx context.Context) {
	for {
		k, stopped := c.queue.Get()
		if stopped {
			return
		}
		err := c.handle(ctx, k)
		if err == nil {
			c.queue.Forget(k)
		} else {
			if !apierrors.IsConflict(err) {
				log.Printf("%s %s: %v", k.kind, strings.TrimPrefix(k.namespace+"/"+k.name, "/"), err)
			}
			c.queue.AddRateLimited(k)
		}
		c.queue.Done(k)
	}
}

func (c *controller) handle(ctx context.Context, k key) (err error) {
	defer func() {
		if r := recover(); r != nil {
			utilruntime.HandleErrorWithContext(ctx, nil, "A panic was caught", "reason", r)
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	switch k.kind {
	case kindBuild:
		return c.handleBuild(ctx, k.namespace, k.name)
	case kindConfig:
		return c.handleConfig(ctx, k.namespace, k.name)
	case kindStream:
		return c.handleStream(ctx, k.namespace, k.name)
	case kindNamespace:
		return handleNamespace(ctx, c.Kube, c.config.Registry, k.name)
	case kindAccount:
		again, err := handleAccount(ctx, c.Kube, c.config, k.namespace, k.name)
		if again > 0 {
			c.queue.AddAfter(k, again)
		}
		return err
	}
	return nil
}
