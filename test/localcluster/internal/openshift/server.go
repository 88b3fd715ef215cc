// SPDX-License-Identifier: Apache-2.0

// Package openshift is a stand-in for the parts of OpenShift that affect every pod: the constraints that the pod is
// admitted with, its namespace's IDs, and the trusted certificates that it can mount. It is also a stand-in for the
// hosts of Routes.
package openshift

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync"
	"time"

	routev1 "github.com/openshift/api/route/v1"
	securityv1 "github.com/openshift/api/security/v1"
	routeclient "github.com/openshift/client-go/route/clientset/versioned/typed/route/v1"
	securityclient "github.com/openshift/client-go/security/clientset/versioned/typed/security/v1"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Config has the server's address and files.
type Config struct {
	Address           string
	CertFile, KeyFile string
	// ClientCA signs the API server's client certificate; the server refuses all other clients.
	ClientCA string
	// CABundle is the file of certificates that the cluster trusts.
	CABundle string
	// Without are the names of the constraints that the cluster lacks.
	Without []string
}

// Clients are the clients of the APIs that the server stands in for, and of Kubernetes.
type Clients struct {
	Kube        kubernetes.Interface
	Constraints securityclient.SecurityContextConstraintsGetter
	Routes      routeclient.RoutesGetter
}

// NewClients creates the clients.
func NewClients(config *rest.Config) (clients Clients, err error) {
	if clients.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return Clients{}, err
	}
	if clients.Constraints, err = securityclient.NewForConfig(config); err != nil {
		return Clients{}, err
	}
	clients.Routes, err = routeclient.NewForConfig(config)
	return clients, err
}

type server struct {
	clients     Clients
	namespaces  corelisters.NamespaceLister
	constraints cache.SharedInformer

	mu   sync.Mutex
	next int64 // first UID of the next block
}

// Run serves the admission of pods, namespaces and Routes, and fills ConfigMaps that ask for the trusted certificates,
// until the context ends. It listens once it knows the cluster's constraints.
func Run(ctx context.Context, clients Clients, config Config) error {
	bundle, err := os.ReadFile(config.CABundle)
	if err != nil {
		return fmt.Errorf("reading the trusted certificates: %w", err)
	}
	constraints, routes := clients.Constraints.SecurityContextConstraints(), clients.Routes.Routes("")
	if err := untilServed(ctx, discarding(constraints.List)); err != nil {
		return err
	}
	if err := untilServed(ctx, discarding(routes.List)); err != nil {
		return err
	}
	if err := makeStock(ctx, clients, config.Without); err != nil {
		return err
	}
	all := informers.NewSharedInformerFactory(clients.Kube, 0)
	labelled := informers.NewSharedInformerFactoryWithOptions(clients.Kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = injectLabel + "=true"
	}))
	s := &server{
		clients: clients, namespaces: all.Core().V1().Namespaces().Lister(), next: firstUID,
		constraints: informerOf(constraints.List, constraints.Watch, &securityv1.SecurityContextConstraints{}),
	}
	injector := bundleInjector{client: clients.Kube, bundle: string(bundle)}
	if err := injector.watch(ctx, labelled.Core().V1().ConfigMaps().Informer()); err != nil {
		return err
	}
	routeInformer := informerOf(routes.List, routes.Watch, &routev1.Route{})
	if err := (routeAdmitter{clients: clients}).watch(ctx, routeInformer); err != nil {
		return err
	}
	all.Start(ctx.Done())
	labelled.Start(ctx.Done())
	go s.constraints.RunWithContext(ctx)
	go routeInformer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), all.Core().V1().Namespaces().Informer().HasSynced, s.constraints.HasSynced)

	pem, err := os.ReadFile(config.ClientCA)
	if err != nil {
		return err
	}
	callers := x509.NewCertPool()
	if !callers.AppendCertsFromPEM(pem) {
		return fmt.Errorf("reading %s: no certificate in it", config.ClientCA)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/pods", s.handle(s.admitPod))
	mux.HandleFunc("/pods-as-they-are", s.handle(s.checkPod))
	mux.HandleFunc("/namespaces", s.handle(s.admitNamespace))
	mux.HandleFunc("/networks", s.handle(s.injectResources))
	mux.HandleFunc("/routes", s.handle(s.admitRoute))
	httpServer := &http.Server{
		Addr:              config.Address,
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs:  callers,
		},
	}
	context.AfterFunc(ctx, func() { httpServer.Close() })
	log.Printf("admission listening on %s", config.Address)
	if err := httpServer.ListenAndServeTLS(config.CertFile, config.KeyFile); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// informerOf watches the objects of one kind in the whole cluster.
func informerOf[L runtime.Object](
	list func(context.Context, metav1.ListOptions) (L, error),
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error), kind runtime.Object,
) cache.SharedInformer {
	return cache.NewSharedInformer(&cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) },
		WatchFuncWithContext: watch,
	}, kind, 0)
}

// discarding calls list and discards the objects.
func discarding[L any](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) error {
	return func(ctx context.Context, o metav1.ListOptions) error {
		_, err := list(ctx, o)
		return err
	}
}

func (s *server) handle(admit func(context.Context, *admissionv1.AdmissionRequest) ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		patch, err := admit(r.Context(), review.Request)
		switch {
		case err != nil:
			answer.Allowed = false
			answer.Result = &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: err.Error()}
		case patch != nil:
			kind := admissionv1.PatchTypeJSONPatch
			answer.Patch, answer.PatchType = patch, &kind
		}
		review.Request, review.Response = nil, answer
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			log.Printf("answering: %v", err)
		}
	}
}
