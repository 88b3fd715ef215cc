// SPDX-License-Identifier: Apache-2.0

// Package buildapi is a stand-in for OpenShift's API server: BuildConfigs,
// Builds, ImageStreams and their tags, as an aggregated API over the cluster's etcd.
//
// Implemented:
//
//   - BuildConfig, buildconfigs/instantiate (lastVersion, env, build arguments, labels) and instantiatebinary (a tar or a gzipped
//     tar; the Build is created a second after the request, the response comes when the pod has the source, and a build that does
//     not run within five minutes is cancelled); Build, cancelled by status.cancelled; builds/log, which waits 30 s for a build to
//     start and then returns BadRequest, as for a build in Error or Cancelled. Both fail with an internal error if the service
//     account of builds is missing.
//   - Docker strategy with a binary source: env, in which $(NAME) and $NAME are expanded, buildArgs (also from Secrets and
//     ConfigMaps), pullSecret, volumes; imageLabels, resources, nodeSelector, completionDeadlineSeconds.
//   - The right to build: writing a BuildConfig or a Build, and buildconfigs/instantiate, need create builds/docker, which the
//     ClusterRoleBinding system:build-strategy-docker-binding gives to every user. As on OpenShift, instantiatebinary does not
//     check it.
//   - revision.commit of a binary build, which the Build keeps in spec.revision.
//   - Run policies, history limits, the ConfigChange trigger: one build when the BuildConfig appears, none for later changes.
//   - ImageStreamImport with import: false of single images: it answers their digests, with the pull secrets of the namespace.
//   - ImageStream, ImageStreamTag (get, list, delete, and a tag made from a DockerImage), Image. A push by a build creates a new
//     tag event.
//   - A service account builder in every namespace of users, with its dockercfg secret and the right to push. A pod that is
//     created before its account has its secret has no pull secret and never gets one. The token in the secret is bound to it and
//     valid for an hour; it is replaced in place before 40 % of the hour are left, as on OpenShift. A deleted secret is replaced
//     under a new name, as before OpenShift 4.16; later releases keep the name.
//
// Not implemented: other sources (git, images, an inline Dockerfile, contextDir, input Secrets), other strategies, from,
// dockerfilePath, noCache, mountTrustedCA, webhook and image change triggers (all of these are refused when a BuildConfig is
// written), builds/clone and builds/details, post-commit hooks (ignored), ImageStreamImage, ImageStreamImport of repositories or
// into a stream, ImageStreamMapping, ImageTag, scheduled imports, tags that follow other tags, image pruning and quotas, the blob
// cache on nodes. A push by anything other than a build creates no tag event. Layers are pushed uncompressed.
package buildapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	"github.com/openshift/api/openapi/generated_openapi"
	buildclient "github.com/openshift/client-go/build/clientset/versioned/typed/build/v1"
	imageclient "github.com/openshift/client-go/image/clientset/versioned/typed/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Config has the server's addresses, files and registry.
type Config struct {
	// Address is the address that the server listens on.
	Address           string
	CertFile, KeyFile string
	EtcdURL           string
	// EtcdCA, EtcdCert and EtcdKey are the files for the connection to etcd.
	EtcdCA, EtcdCert, EtcdKey string
	// Kubeconfig is the file with which the server authenticates and authorizes callers, and reaches pods.
	Kubeconfig string
	// Registry is the HOST:PORT of the registry of the ImageStreams.
	Registry string
}

// Clients are clients of the APIs that a controller needs.
type Clients struct {
	Builds buildclient.BuildV1Interface
	Images imageclient.ImageV1Interface
	Kube   kubernetes.Interface
}

// Run serves the APIs until the context ends. Once the APIs are served, it calls run with clients for them. An error of
// run also ends the server.
func Run(ctx context.Context, config Config, run func(context.Context, Clients) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kubeConfig, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		return err
	}
	kubeConfig.QPS, kubeConfig.Burst = 100, 200
	if err := waitAuthentication(ctx, kubeConfig); err != nil {
		return err
	}
	server, clients, err := newServer(config, kubeConfig)
	if err != nil {
		return err
	}
	err = server.AddPostStartHook("controllers", func(genericapiserver.PostStartHookContext) error {
		go func() { cancel(run(ctx, clients)) }()
		return nil
	})
	if err != nil {
		return err
	}
	if err := server.PrepareRun().RunWithContext(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// waitAuthentication waits for the ConfigMap in which the API server describes how it forwards callers. The API server
// writes it some time after it is ready.
func waitAuthentication(ctx context.Context, kubeConfig *restclient.Config) error {
	client, err := kubernetes.NewForConfig(kubeConfig)
	if err != nil {
		return err
	}
	const namespace, name, key = metav1.NamespaceSystem, "extension-apiserver-authentication", "requestheader-client-ca-file"
	var last error
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		var cm *corev1.ConfigMap
		cm, last = client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		return last == nil && cm.Data[key] != "", nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s in configmap %s/%s: %w", key, namespace, name, errors.Join(err, last))
	}
	return nil
}

func newServer(config Config, kubeConfig *restclient.Config) (*genericapiserver.GenericAPIServer, Clients, error) {
	var clients Clients
	scheme, err := newScheme()
	if err != nil {
		return nil, clients, err
	}
	codecs := serializer.NewCodecFactory(scheme)
	server, err := genericConfig(config, codecs)
	if err != nil {
		return nil, clients, err
	}
	// The server's own clients do not go through the cluster's API server, which may be down.
	loopback := restclient.CopyConfig(server.LoopbackClientConfig)
	loopback.QPS = -1
	if clients.Builds, err = buildclient.NewForConfig(loopback); err != nil {
		return nil, clients, err
	}
	if clients.Images, err = imageclient.NewForConfig(loopback); err != nil {
		return nil, clients, err
	}
	if clients.Kube, err = kubernetes.NewForConfig(kubeConfig); err != nil {
		return nil, clients, err
	}
	server.AdmissionControl = admission.NewChainHandler(server.AdmissionControl, newBuildByStrategy(clients.Kube))
	api, err := server.Complete().New("openshift-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, clients, err
	}
	storage, err := storages(scheme, server.RESTOptionsGetter, config, clients, kubeConfig)
	if err != nil {
		return nil, clients, err
	}
	for group, resources := range storage {
		info := genericapiserver.NewDefaultAPIGroupInfo(group, scheme, runtime.NewParameterCodec(scheme), codecs)
		info.VersionedResourcesStorageMap["v1"] = resources
		if err := api.InstallAPIGroup(&info); err != nil {
			return nil, clients, fmt.Errorf("installing the API %s: %w", group, err)
		}
	}
	return api, clients, nil
}

func genericConfig(config Config, codecs serializer.CodecFactory) (*genericapiserver.RecommendedConfig, error) {
	host, portText, err := net.SplitHostPort(config.Address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, err
	}
	o := options.NewRecommendedOptions("/openshift.io", codecs.LegacyCodec(buildv1.GroupVersion, imagev1.GroupVersion))
	o.Etcd.StorageConfig.Transport.ServerList = []string{config.EtcdURL}
	o.Etcd.StorageConfig.Transport.TrustedCAFile = config.EtcdCA
	o.Etcd.StorageConfig.Transport.CertFile, o.Etcd.StorageConfig.Transport.KeyFile = config.EtcdCert, config.EtcdKey
	o.SecureServing.BindAddress, o.SecureServing.BindPort = net.ParseIP(host), port
	o.SecureServing.ServerCert.CertKey.CertFile, o.SecureServing.ServerCert.CertKey.KeyFile = config.CertFile, config.KeyFile
	o.Authentication.RemoteKubeConfigFile = config.Kubeconfig
	o.Authorization.RemoteKubeConfigFile = config.Kubeconfig
	o.CoreAPI.CoreAPIKubeconfigPath = config.Kubeconfig
	// The cluster's API server has already queued the request.
	o.Features.EnablePriorityAndFairness = false

	server := genericapiserver.NewRecommendedConfig(codecs)
	server.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	public, err := publicScheme()
	if err != nil {
		return nil, err
	}
	names := openapi.NewDefinitionNamer(public)
	server.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, names)
	server.OpenAPIConfig.Info.Title = "OpenShift builds and images (stand-in)"
	server.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, names)
	server.OpenAPIV3Config.Info.Title = server.OpenAPIConfig.Info.Title
	ordinary := filters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString("log", "instantiatebinary"))
	server.LongRunningFunc = func(r *http.Request, info *genericapirequest.RequestInfo) bool { return ordinary(r, info) }
	if err := o.ApplyTo(server); err != nil {
		return nil, err
	}
	return server, nil
}

// definitions returns OpenShift's definitions, and adds the one type that every API server serves and OpenShift's
// definitions lack.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := generated_openapi.GetOpenAPIDefinitions(ref)
	all["k8s.io/apimachinery/pkg/version.Info"] = common.OpenAPIDefinition{
		Schema: spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Description: "Info contains versioning information."}},
	}
	return all
}

// storages returns the resources of each API group.
func storages(scheme *runtime.Scheme, etcd generic.RESTOptionsGetter, config Config, clients Clients, kubeConfig *restclient.Config) (
	map[string]map[string]rest.Storage, error) {
	buildConfigStore, err := newStore(buildConfigs(scheme), etcd)
	if err != nil {
		return nil, err
	}
	buildStore, err := newStore(builds(scheme), etcd)
	if err != nil {
		return nil, err
	}
	streamStore, err := newStore(imageStreams(scheme, config.Registry), etcd)
	if err != nil {
		return nil, err
	}
	imageStore, err := newStore(images(scheme), etcd)
	if err != nil {
		return nil, err
	}
	streamStatus := *streamStore
	status := imageStreamStatus(scheme)
	streamStatus.UpdateStrategy = status

	instantiator := Instantiator(clients)
	return map[string]map[string]rest.Storage{
		buildv1.GroupName: {
			"buildconfigs":                   withNames{buildConfigStore, []string{"bc"}},
			"buildconfigs/instantiate":       instantiateREST{instantiator: instantiator},
			"buildconfigs/instantiatebinary": binaryREST{instantiator: instantiator, config: kubeConfig, kube: clients.Kube},
			"builds":                         withNames{buildStore, nil},
			"builds/log":                     logREST{builds: clients.Builds, pods: clients.Kube},
		},
		imagev1.GroupName: {
			"imagestreams":        withNames{streamStore, []string{"is"}},
			"imagestreams/status": statusREST{store: &streamStatus},
			"imagestreamtags":     tagREST{images: clients.Images, TableConvertor: imageStreamTagTable()},
			"imagestreamimports":  importREST{kube: clients.Kube},
			"images":              imageStore,
		},
	}, nil
}

// withNames adds short names and the category "all" to a store.
type withNames struct {
	*genericregistry.Store
	short []string
}

func (s withNames) ShortNames() []string { return s.short }
func (withNames) Categories() []string   { return []string{"all"} }
