package openshift

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"net/http"
	"os"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Config says what the server needs.
type Config struct {
	Address           string
	CertFile, KeyFile string
	// ClientCA signs the API server's client certificate; nobody else may ask.
	ClientCA string
	// CABundle is the file of certificates that the cluster trusts.
	CABundle string
}

type server struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister

	mu   sync.Mutex
	next int64 // first UID of the next block
}

// Run serves the admission of pods and namespaces, and fills ConfigMaps that
// ask for the trusted certificates, until the context ends.
func Run(ctx context.Context, client kubernetes.Interface, config Config) error {
	bundle, err := os.ReadFile(config.CABundle)
	if err != nil {
		return fmt.Errorf("reading the trusted certificates: %w", err)
	}
	all := informers.NewSharedInformerFactory(client, 0)
	labelled := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = injectLabel + "=true"
	}))
	s := &server{client: client, namespaces: all.Core().V1().Namespaces().Lister(), next: firstUID}
	injector := bundleInjector{client: client, bundle: string(bundle)}
	if err := injector.watch(ctx, labelled.Core().V1().ConfigMaps().Informer()); err != nil {
		return err
	}
	all.Start(ctx.Done())
	labelled.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), all.Core().V1().Namespaces().Informer().HasSynced)

	pem, err := os.ReadFile(config.ClientCA)
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(pem) {
		return fmt.Errorf("reading %s: no certificate in it", config.ClientCA)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/pods", s.handle(s.admitPod))
	mux.HandleFunc("/namespaces", s.handle(s.admitNamespace))
	mux.HandleFunc("/networks", s.handle(s.injectResources))
	httpServer := &http.Server{
		Addr:              config.Address,
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs:  clients,
		},
	}
	context.AfterFunc(ctx, func() { httpServer.Close() })
	log.Printf("admission listening on %s", config.Address)
	if err := httpServer.ListenAndServeTLS(config.CertFile, config.KeyFile); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *server) handle(admit func(*admissionv1.AdmissionRequest) ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		patch, err := admit(review.Request)
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

func (s *server) admitPod(request *admissionv1.AdmissionRequest) ([]byte, error) {
	if !ordinary(request.Namespace) {
		return nil, nil
	}
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil {
		return nil, err
	}
	before := pod.DeepCopy()
	scc := sccFor(&pod)
	if scc == restricted {
		annotations, err := s.annotationsOf(request.Namespace)
		if err != nil {
			return nil, err
		}
		if err := restrict(&pod, annotations); err != nil {
			return nil, err
		}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[sccAnnotation] = scc
	return podPatch(before, &pod)
}

// annotationsOf asks the API server where the watch is still behind, as it is
// for the first pod of a new namespace.
func (s *server) annotationsOf(namespace string) (map[string]string, error) {
	ns, err := s.namespaces.Get(namespace)
	if err != nil || ns.Annotations[uidRangeAnnotation] == "" {
		ns, err = s.client.CoreV1().Namespaces().Get(context.Background(), namespace, metav1.GetOptions{})
	}
	if err != nil {
		return nil, err
	}
	return ns.Annotations, nil
}

func (s *server) admitNamespace(request *admissionv1.AdmissionRequest) ([]byte, error) {
	if !ordinary(request.Name) {
		return nil, nil
	}
	var ns corev1.Namespace
	if err := json.Unmarshal(request.Object.Raw, &ns); err != nil {
		return nil, err
	}
	if ns.Annotations[uidRangeAnnotation] != "" {
		return nil, nil
	}
	first, err := s.allocate()
	if err != nil {
		return nil, err
	}
	annotations := namespaceAnnotations(first)
	maps.Copy(annotations, ns.Annotations)
	return json.Marshal([]patchOperation{{Op: "add", Path: "/metadata/annotations", Value: annotations}})
}

// allocate returns a block that no namespace has: what this process gave out
// before is in next, what an earlier process gave out is in the cluster.
func (s *server) allocate() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.client.CoreV1().Namespaces().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("allocating UIDs: %w", err)
	}
	for _, ns := range list.Items {
		if first, err := block(ns.Annotations[uidRangeAnnotation]); err == nil && first >= s.next {
			s.next = first + blockSize
		}
	}
	first := s.next
	s.next += blockSize
	return first, nil
}
