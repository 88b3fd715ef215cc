// SPDX-License-Identifier: Apache-2.0

// Package apitest is an API server in memory for tests of steps: real HTTP, and the semantics of reads and writes on which the steps
// depend. It has no controllers except the garbage collector, no schemas, no admission and no rights, and its server-side apply
// knows no owners of fields.
package apitest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	tektonscheme "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/scheme"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Object is one object as JSON.
type Object = map[string]any

// Server is the API server.
type Server struct {
	t    testing.TB
	http *httptest.Server
	// Changed is called after a change, with the object's path, and nil for a deleted object. It stands in for controllers.
	Changed func(path string, object Object)
	// Admit may change an object before it is stored, or answered to a dry run. It stands in for admission and defaults.
	Admit func(path string, object Object)
	// Handle answers requests that the server does not know, such as those for subresources. It reports whether it has answered.
	Handle func(w http.ResponseWriter, r *http.Request) bool
	// Groups are the API groups that discovery lists.
	Groups []string

	mu      sync.Mutex
	objects map[string]Object // by path
	version int
	events  []event
	wake    chan struct{}
}

type event struct {
	version    int
	kind, path string
	object     Object
}

// Start starts a server with these objects.
func Start(t testing.TB, objects ...runtime.Object) *Server {
	t.Helper()
	s := &Server{t: t, objects: map[string]Object{}, wake: make(chan struct{})}
	s.http = httptest.NewServer(s)
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	for _, object := range objects {
		s.Add(object)
	}
	return s
}

// Clients returns the clients of a command. wrap, which may be nil, stands between them and the network.
func (s *Server) Clients(wrap func(http.RoundTripper) http.RoundTripper) *kube.Clients {
	s.t.Helper()
	config := &rest.Config{Host: s.http.URL}
	if wrap != nil {
		config.Wrap(wrap)
	}
	clients, err := kube.NewClients(config, "ns")
	if err != nil {
		s.t.Fatal(err)
	}
	return clients
}

// Add stores an object of a kind that Kubernetes or Tekton has.
func (s *Server) Add(object runtime.Object) {
	s.t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		kinds, _, err = tektonscheme.Scheme.ObjectKinds(object)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	made, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		s.t.Fatal(err)
	}
	made["apiVersion"], made["kind"] = kinds[0].GroupVersion().String(), kinds[0].Kind
	metadata := metadataOf(made)
	at := "/apis/" + kinds[0].GroupVersion().String()
	if kinds[0].Group == "" {
		at = "/api/v1"
	}
	if namespace, _ := metadata["namespace"].(string); namespace != "" {
		at += "/namespaces/" + namespace
	}
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	s.Put(at+"/"+resource.Resource+"/"+fmt.Sprint(metadata["name"]), made)
}

// Put stores an object at a path, as a controller does.
func (s *Server) Put(path string, object Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(path, copied(object), "")
}

// Get returns the object at a path, nil for none.
func (s *Server) Get(path string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copied(s.objects[path])
}

// Paths returns the paths of all objects, sorted.
func (s *Server) Paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// UIDs returns the UIDs of all objects by their paths.
func (s *Server) UIDs() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for path, object := range s.objects {
		all[path] = fmt.Sprint(metadataOf(object)["uid"])
	}
	return all
}

// Delete deletes the object at a path, and everything that it owns.
func (s *Server) Delete(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(path)
}

// store writes an object, and returns it as it is stored. Callers hold mu.
func (s *Server) store(path string, object Object, manager string) Object {
	before := s.objects[path]
	kind := "ADDED"
	metadata := metadataOf(object)
	s.version++
	if before == nil {
		if metadata["uid"] == nil || metadata["uid"] == "" {
			metadata["uid"] = fmt.Sprintf("uid-%d", s.version)
		}
		if metadata["creationTimestamp"] == nil {
			metadata["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		}
	} else {
		kind = "MODIFIED"
		metadata["uid"], metadata["creationTimestamp"] = metadataOf(before)["uid"], metadataOf(before)["creationTimestamp"]
	}
	metadata["resourceVersion"] = fmt.Sprint(s.version)
	if manager != "" {
		metadata["managedFields"] = []any{Object{"manager": manager, "operation": "Update", "time": time.Now().UTC().Format(time.RFC3339)}}
	}
	s.objects[path] = object
	s.publish(kind, path, object)
	return object
}

// remove deletes an object and its dependents. Callers hold mu.
func (s *Server) remove(path string) {
	object := s.objects[path]
	if object == nil {
		return
	}
	delete(s.objects, path)
	s.version++
	s.publish("DELETED", path, object)
	for _, other := range slices.Sorted(maps.Keys(s.objects)) {
		owners, _ := metadataOf(s.objects[other])["ownerReferences"].([]any)
		if slices.ContainsFunc(owners, func(owner any) bool { return owner.(Object)["uid"] == metadataOf(object)["uid"] }) {
			s.remove(other)
		}
	}
}

func (s *Server) publish(kind, path string, object Object) {
	s.events = append(s.events, event{s.version, kind, path, copied(object)})
	close(s.wake)
	s.wake = make(chan struct{})
	if s.Changed != nil {
		if kind == "DELETED" {
			object = nil
		}
		go s.Changed(path, copied(object))
	}
}

func metadataOf(object Object) Object {
	metadata, ok := object["metadata"].(Object)
	if !ok {
		metadata = Object{}
		object["metadata"] = metadata
	}
	return metadata
}

func copied(object Object) Object {
	if object == nil {
		return nil
	}
	return runtime.DeepCopyJSON(plain(object))
}

// plain turns all numbers into those that DeepCopyJSON knows.
func plain(object Object) Object {
	content, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	var result Object
	if err := json.Unmarshal(content, &result); err != nil {
		panic(err)
	}
	return result
}

// refusal is an error of the API server.
type refusal struct {
	code    int
	reason  metav1.StatusReason
	message string
}

func refuse(code int, reason metav1.StatusReason, format string, args ...any) *refusal {
	return &refusal{code, reason, fmt.Sprintf(format, args...)}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.Handle != nil && s.Handle(w, r) {
		return
	}
	if strings.HasSuffix(r.URL.Path, "/portforward") {
		s.forward(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.URL.Query().Get("watch") != "" {
		s.watch(w, r)
		return
	}
	object, code, refused := s.do(r, body)
	w.Header().Set("Content-Type", "application/json")
	if refused != nil {
		code = refused.code
		object = Object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refused.code, "reason": string(refused.reason),
			"message": refused.message}
		if !isList(r.URL.Path) {
			object["details"] = Object{"name": r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]}
		}
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

func (s *Server) do(r *http.Request, body []byte) (Object, int, *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sent Object
	if len(body) > 0 {
		if err := json.Unmarshal(body, &sent); err != nil {
			return nil, 0, refuse(http.StatusBadRequest, metav1.StatusReasonBadRequest, "the body is not JSON: %v", err)
		}
	}
	path := r.URL.Path
	switch r.Method {
	case http.MethodGet:
		return s.read(r)
	case http.MethodPost:
		return s.create(r, path, sent)
	case http.MethodPut, http.MethodPatch:
		return s.change(r, path, sent)
	case http.MethodDelete:
		return s.delete(path, sent)
	}
	return nil, 0, refuse(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow %s", r.Method)
}

// isList reports whether the path names a resource, and not an object.
func isList(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "apis" {
		parts = parts[1:]
	}
	return len(parts) == 3 || len(parts) == 5 && parts[2] == "namespaces"
}

// nameOf returns the resource and the name of a path, for messages.
func nameOf(path string) string {
	parts := strings.Split(path, "/")
	return fmt.Sprintf("%s %q", parts[max(0, len(parts)-2)], parts[len(parts)-1])
}

func (s *Server) read(r *http.Request) (Object, int, *refusal) {
	path := r.URL.Path
	switch path {
	case "/api":
		return Object{"kind": "APIVersions", "versions": []any{"v1"}}, http.StatusOK, nil
	case "/apis":
		return s.groups(), http.StatusOK, nil
	}
	if !isList(path) {
		if object := s.objects[path]; object != nil {
			return copied(object), http.StatusOK, nil
		}
		return nil, 0, refuse(http.StatusNotFound, metav1.StatusReasonNotFound, "%s not found", nameOf(path))
	}
	items := []any{}
	for _, at := range slices.Sorted(maps.Keys(s.objects)) {
		if selects(r, at, s.objects[at]) {
			items = append(items, copied(s.objects[at]))
		}
	}
	kind, known := lists[path[strings.LastIndex(path, "/")+1:]]
	if !known {
		return nil, 0, refuse(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	}
	return Object{"kind": kind, "apiVersion": versionOf(path), "metadata": Object{"resourceVersion": fmt.Sprint(s.version)}, "items": items},
		http.StatusOK, nil
}

func (s *Server) groups() Object {
	groups := []any{}
	for _, name := range s.Groups {
		version := Object{"groupVersion": name + "/v1", "version": "v1"}
		groups = append(groups, Object{"name": name, "versions": []any{version}, "preferredVersion": version})
	}
	return Object{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
}

// lists are the kinds of lists by resource. A client decodes no other kind.
var lists = map[string]string{
	"buildconfigs": "BuildConfigList", "builds": "BuildList", "clusterrolebindings": "ClusterRoleBindingList",
	"configmaps": "ConfigMapList", "cronjobs": "CronJobList", "events": "EventList", "leases": "LeaseList",
	"limitranges": "LimitRangeList", "nodes": "NodeList", "persistentvolumeclaims": "PersistentVolumeClaimList",
	"pipelineruns": "PipelineRunList", "pipelines": "PipelineList", "pods": "PodList", "resourcequotas": "ResourceQuotaList",
	"rolebindings": "RoleBindingList", "roles": "RoleList", "secrets": "SecretList", "serviceaccounts": "ServiceAccountList",
	"statefulsets": "StatefulSetList", "storageclasses": "StorageClassList", "taskruns": "TaskRunList", "tasks": "TaskList",
}

// versionOf returns the apiVersion of the objects at a path.
func versionOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		return parts[1]
	}
	return parts[1] + "/" + parts[2]
}

// selects reports whether a list or watch shows the object at a path.
func selects(r *http.Request, at string, object Object) bool {
	list := r.URL.Path
	if !strings.HasPrefix(at, list+"/") || strings.Contains(at[len(list)+1:], "/") {
		return false
	}
	metadata := metadataOf(object)
	own := labels.Set{}
	found, _ := metadata["labels"].(Object)
	for name, value := range found {
		own[name] = fmt.Sprint(value)
	}
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil || !byLabel.Matches(own) {
		return false
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return false
	}
	name, wanted := byField.RequiresExactMatch("metadata.name")
	return !wanted || name == metadata["name"]
}

func (s *Server) create(r *http.Request, path string, sent Object) (Object, int, *refusal) {
	switch resource := path[strings.LastIndex(path, "/")+1:]; {
	case resource == "selfsubjectreviews":
		return Object{"kind": "SelfSubjectReview", "apiVersion": versionOf(path), "status": Object{"userInfo": Object{"username": "h-kim"}}},
			http.StatusCreated, nil
	case strings.HasSuffix(resource, "reviews"):
		sent["status"] = Object{"allowed": true}
		return sent, http.StatusCreated, nil
	}
	metadata := metadataOf(sent)
	if base, _ := metadata["generateName"].(string); base != "" && (metadata["name"] == nil || metadata["name"] == "") {
		metadata["name"] = fmt.Sprintf("%s%d", base, s.version)
	}
	at := path + "/" + fmt.Sprint(metadata["name"])
	if s.objects[at] != nil {
		return nil, 0, refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists, "%s already exists", nameOf(at))
	}
	if s.Admit != nil {
		s.Admit(at, sent)
	}
	if r.URL.Query().Get("dryRun") == "All" {
		return sent, http.StatusCreated, nil
	}
	return copied(s.store(at, sent, r.URL.Query().Get("fieldManager"))), http.StatusCreated, nil
}

func (s *Server) change(r *http.Request, path string, sent Object) (Object, int, *refusal) {
	live := s.objects[path]
	applies := strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch")
	if live == nil && !applies {
		return nil, 0, refuse(http.StatusNotFound, metav1.StatusReasonNotFound, "%s not found", nameOf(path))
	}
	for _, precondition := range []string{"uid", "resourceVersion"} {
		want, _ := metadataOf(sent)[precondition].(string)
		if seen := metadataOf(orEmpty(live))[precondition]; want != "" && want != seen {
			return nil, 0, refuse(http.StatusConflict, metav1.StatusReasonConflict, "Operation cannot be fulfilled on %s: its %s is %v",
				nameOf(path), precondition, seen)
		}
	}
	code := http.StatusOK
	if r.Method == http.MethodPatch {
		if live == nil {
			code = http.StatusCreated
		}
		sent = merged(copied(orEmpty(live)), sent)
	}
	if s.Admit != nil {
		s.Admit(path, sent)
	}
	if r.URL.Query().Get("dryRun") == "All" {
		return sent, code, nil
	}
	return copied(s.store(path, sent, r.URL.Query().Get("fieldManager"))), code, nil
}

func orEmpty(object Object) Object {
	if object == nil {
		return Object{}
	}
	return object
}

// merged merges a patch into an object (RFC 7386).
func merged(object, patch Object) Object {
	for name, value := range patch {
		inner, isObject := value.(Object)
		switch {
		case value == nil:
			delete(object, name)
		case isObject:
			before, _ := object[name].(Object)
			object[name] = merged(orEmpty(before), inner)
		default:
			object[name] = value
		}
	}
	return object
}

func (s *Server) delete(path string, options Object) (Object, int, *refusal) {
	live := s.objects[path]
	if live == nil {
		return nil, 0, refuse(http.StatusNotFound, metav1.StatusReasonNotFound, "%s not found", nameOf(path))
	}
	wanted, _ := options["preconditions"].(Object)
	for name, value := range wanted {
		if seen := metadataOf(live)[name]; seen != value {
			return nil, 0, refuse(http.StatusConflict, metav1.StatusReasonConflict, "Precondition failed: %s of %s is %v, not %v", name,
				nameOf(path), seen, value)
		}
	}
	s.remove(path)
	return Object{"kind": "Status", "apiVersion": "v1", "status": "Success"}, http.StatusOK, nil
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	var since int
	_, _ = fmt.Sscan(r.URL.Query().Get("resourceVersion"), &since)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flusher := w.(http.Flusher)
	flusher.Flush()
	for lines := json.NewEncoder(w); ; {
		s.mu.Lock()
		wake := s.wake
		var news []event
		for _, e := range s.events {
			if e.version > since && selects(r, e.path, e.object) {
				news = append(news, e)
			}
		}
		since = s.version
		s.mu.Unlock()
		for _, e := range news {
			if lines.Encode(Object{"type": e.kind, "object": e.object}) != nil {
				return
			}
		}
		flusher.Flush()
		select {
		case <-wake:
		case <-r.Context().Done():
			return
		}
	}
}
