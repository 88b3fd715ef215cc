// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/retry"
)

// StartTimeAnnotation of a namespace is a duration. It replaces the five minutes within which the namespace's binary
// builds must start to run.
const StartTimeAnnotation = "localcluster/build-start-time"

// SourceContainer is the build pod's container that fetches or receives the source.
const SourceContainer = "git-clone"

const (
	// binaryTimeout is the time within which a build must start to run if a client sends its source.
	binaryTimeout = 5 * time.Minute
	// binaryPause is the time between the request and the creation of the Build.
	binaryPause   = time.Second
	cancelTimeout = 30 * time.Second
	noLogs        = "no logs are available."
)

// binaryREST is buildconfigs/instantiatebinary: it streams the body to the build's pod, and answers after that.
type binaryREST struct {
	instantiator Instantiator
	config       *restclient.Config
	kube         kubernetes.Interface
}

var _ rest.Connecter = binaryREST{}

func (binaryREST) New() runtime.Object      { return &buildv1.BinaryBuildRequestOptions{} }
func (binaryREST) Destroy()                 {}
func (binaryREST) ConnectMethods() []string { return []string{http.MethodPost} }
func (binaryREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &buildv1.BinaryBuildRequestOptions{}, false, ""
}
func (binaryREST) ProducesMIMETypes(string) []string { return nil }
func (binaryREST) ProducesObject(string) any         { return buildv1.Build{} }

// Connect implements rest.Connecter.
func (r binaryREST) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	return http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		options := options.(*buildv1.BinaryBuildRequestOptions)
		if options.AsFile != "" {
			responder.Error(apierrors.NewBadRequest("this stand-in does not implement asFile"))
			return
		}
		build, err := r.build(ctx, name, options.Commit, request.Body)
		if err != nil {
			responder.Error(err)
			return
		}
		responder.Object(http.StatusCreated, build)
	}), nil
}

func (r binaryREST) build(ctx context.Context, name, commit string, body io.Reader) (*buildv1.Build, error) {
	request := &buildv1.BuildRequest{
		ObjectMeta:  metav1.ObjectMeta{Name: name},
		Binary:      &buildv1.BinaryBuildSource{},
		TriggeredBy: []buildv1.BuildTriggerCause{{Message: CauseManual}},
	}
	if commit != "" {
		request.Revision = &buildv1.SourceRevision{Git: &buildv1.GitSourceRevision{Commit: commit}}
	}
	// OpenShift polls for ImageStreamTags of the BuildConfig, and pauses before the first time.
	select {
	case <-time.After(binaryPause):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	build, err := r.instantiator.Instantiate(ctx, genericapirequest.NamespaceValue(ctx), request)
	if err != nil {
		return nil, err
	}
	latest, ended, err := r.send(ctx, build, body)
	if err != nil && !ended {
		r.cancel(build)
	}
	return latest, err
}

// send streams the body into the build's pod as soon as the pod runs. ended reports whether the build ended by itself
// before an error.
func (r binaryREST) send(ctx context.Context, build *buildv1.Build, body io.Reader) (latest *buildv1.Build, ended bool, err error) {
	timeout, err := r.startTime(ctx, build.Namespace)
	if err != nil {
		return nil, false, err
	}
	latest, err = waitStarted(ctx, r.instantiator.Builds, build.Namespace, build.Name, timeout)
	switch {
	case errors.Is(err, errBuildDeleted):
		return nil, true, apierrors.NewBadRequest(fmt.Sprintf("build %s was deleted before it started: %s", build.Name, noLogs))
	case err != nil:
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("unable to wait for build %s to run: %v", build.Name, err))
	}
	switch latest.Status.Phase {
	case buildv1.BuildPhaseRunning:
	case buildv1.BuildPhaseError:
		return nil, true, apierrors.NewBadRequest(fmt.Sprintf("build %s encountered an error: %s", build.Name, noLogs))
	case buildv1.BuildPhaseFailed:
		return nil, true, apierrors.NewBadRequest(fmt.Sprintf("build %s failed: %s: %s", build.Name, latest.Status.Reason, latest.Status.Message))
	case buildv1.BuildPhaseCancelled:
		return nil, true, apierrors.NewBadRequest(fmt.Sprintf("build %s was cancelled: %s", build.Name, noLogs))
	default:
		return nil, true, apierrors.NewBadRequest(fmt.Sprintf("cannot upload file to build %s with status %s", build.Name, latest.Status.Phase))
	}
	attach := r.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(build.Namespace).Name(PodName(build.Name)).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Stdin: true, Container: SourceContainer}, scheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(r.config, http.MethodPost, attach.URL())
	if err != nil {
		return nil, false, err
	}
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: body}); err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	return latest, false, nil
}

// startTime returns the time within which a build of the namespace must start to run.
func (r binaryREST) startTime(ctx context.Context, namespace string) (time.Duration, error) {
	ns, err := r.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil || ns.Annotations[StartTimeAnnotation] == "" {
		return binaryTimeout, err
	}
	return time.ParseDuration(ns.Annotations[StartTimeAnnotation])
}

// cancel cancels a build whose source will not arrive. It uses a context of its own, because the request's may have ended.
func (r binaryREST) cancel(build *buildv1.Build) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTimeout)
	defer stop()
	builds := r.instantiator.Builds.Builds(build.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		latest, err := builds.Get(ctx, build.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		latest.Status.Cancelled = true
		_, err = builds.Update(ctx, latest, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		log.Printf("cancelling build %s/%s, whose source did not come: %v", build.Namespace, build.Name, err)
	}
}
