// SPDX-License-Identifier: Apache-2.0

package install

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// apiServer keeps applied objects, and assigns a new resource version if an object differs. It merges nothing: an applied
// object replaces the previous one. It answers a dry run and keeps nothing of it.
type apiServer struct {
	mu      sync.Mutex
	objects map[string]map[string]any
	bodies  map[string]string
	version int
	// refuse maps parts of a path to the answer for requests to that path.
	refuse map[string]string
	// mayNot lists "verb resource" that access reviews deny.
	mayNot []string
	dryRun []bool
	// deleted, unless nil, is called after the object of a path was deleted.
	deleted func(path string)
}

const notFound = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{"name":"x"},"code":404}`

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	for part, status := range s.refuse {
		if strings.Contains(r.URL.Path, part) {
			code := http.StatusNotFound
			if strings.Contains(status, "Forbidden") {
				code = http.StatusForbidden
			}
			w.WriteHeader(code)
			fmt.Fprint(w, status)
			return
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var answer any
	switch {
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		answer = s.review(body)
	case r.Method == http.MethodGet && s.objects[r.URL.Path] == nil && isList(r.URL.Path):
		answer = s.list(r)
	case r.Method != http.MethodPatch && s.objects[r.URL.Path] == nil:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, notFound)
		return
	case r.Method == http.MethodDelete:
		answer = s.objects[r.URL.Path]
		delete(s.objects, r.URL.Path)
		delete(s.bodies, r.URL.Path)
		if s.deleted != nil {
			s.deleted(r.URL.Path)
		}
	case r.Method == http.MethodPatch:
		if answer, err = s.patch(r, body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	default:
		answer = s.objects[r.URL.Path]
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (s *apiServer) patch(r *http.Request, body []byte) (map[string]any, error) {
	query := r.URL.Query()
	if r.Header.Get("Content-Type") == "application/merge-patch+json" {
		s.bodies[r.URL.Path] = string(body)
		return s.objects[r.URL.Path], nil
	}
	s.dryRun = append(s.dryRun, query.Get("dryRun") == "All")
	if query.Get("fieldManager") != fieldManager || query.Get("force") != "true" ||
		r.Header.Get("Content-Type") != "application/apply-patch+yaml" {
		return nil, errors.New("not an apply by " + fieldManager)
	}
	if s.bodies[r.URL.Path] == string(body) {
		return s.objects[r.URL.Path], nil
	}
	object := map[string]any{}
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, err
	}
	metadata := object["metadata"].(map[string]any)
	metadata["managedFields"] = []any{map[string]any{"manager": fieldManager, "subresource": fmt.Sprint(s.version)}}
	if query.Get("dryRun") == "All" {
		return object, nil
	}
	s.version++
	metadata["resourceVersion"] = fmt.Sprint(s.version)
	s.objects[r.URL.Path], s.bodies[r.URL.Path] = object, string(body)
	return object, nil
}

// isList reports whether path names a resource: /api/v1/namespaces/team/configmaps, or /apis/group/v1/clusterroles.
func isList(path string) bool {
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/"), "/")
	if strings.HasPrefix(path, "/apis/") {
		parts = parts[1:]
	}
	return len(parts) == 2 || len(parts) == 4
}

func (s *apiServer) list(r *http.Request) map[string]any {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return map[string]any{}
	}
	items := []any{}
	for _, at := range slices.Sorted(maps.Keys(s.objects)) {
		object := &unstructured.Unstructured{Object: s.objects[at]}
		if path.Dir(at) == r.URL.Path && selector.Matches(labels.Set(object.GetLabels())) {
			items = append(items, s.objects[at])
		}
	}
	kind := map[string]string{"persistentvolumeclaims": "PersistentVolumeClaimList", "configmaps": "ConfigMapList"}[path.Base(r.URL.Path)]
	return map[string]any{"apiVersion": "v1", "kind": cmp.Or(kind, "List"), "items": items}
}

func (s *apiServer) review(body []byte) map[string]any {
	var review authorizationv1.SelfSubjectAccessReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil
	}
	asked := review.Spec.ResourceAttributes
	return map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"status": map[string]any{"allowed": !slices.Contains(s.mayNot, asked.Verb+" "+asked.Resource)},
	}
}

// put stores an object that another client created.
func (s *apiServer) put(path, yamlText string) {
	object := map[string]any{}
	if err := yaml.Unmarshal([]byte(yamlText), &object); err != nil {
		panic(err)
	}
	s.objects[path] = object
}

func start(t *testing.T, refuse map[string]string) (*apiServer, dynamic.Interface) {
	t.Helper()
	s, clients := startBoth(t, refuse)
	return s, clients.Objects
}

func startBoth(t *testing.T, refuse map[string]string) (*apiServer, *kube.Clients) {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]any{}, bodies: map[string]string{}, refuse: refuse}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return s, &kube.Clients{Kube: typed, Objects: client}
}

func applyAll(t *testing.T, client dynamic.Interface, objects []*unstructured.Unstructured) map[Outcome]int {
	t.Helper()
	outcomes := map[Outcome]int{}
	for _, object := range objects {
		change, err := Apply(t.Context(), client, object, false)
		if err != nil {
			t.Fatal(err)
		}
		outcomes[change.Outcome]++
	}
	return outcomes
}

func TestApplyCanBeRepeated(t *testing.T) {
	server, client := start(t, nil)
	admin := request(t)
	admin.ClusterRole = true
	objects := render(t, admin)
	if got := applyAll(t, client, objects); got[Created] != len(objects) {
		t.Errorf("first: %v, want %d created", got, len(objects))
	}
	if got := applyAll(t, client, objects); got[Unchanged] != len(objects) {
		t.Errorf("again: %v, want %d unchanged", got, len(objects))
	}
	admin.ClusterFile = append(admin.ClusterFile, "notes: new\n"...)
	if got := applyAll(t, client, render(t, admin)); got[Changed] != 1 || got[Unchanged] != len(objects)-1 {
		t.Errorf("with another cluster file: %v, want one changed", got)
	}
	for _, path := range []string{
		"/api/v1/namespaces/team/configmaps/mlenv-cluster-small",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/mlenv-observer",
		"/apis/tekton.dev/v1/namespaces/team/pipelines/train-multi-node",
	} {
		if server.objects[path] == nil {
			t.Errorf("nothing was applied at %s", path)
		}
	}
}

func TestApplyDryRun(t *testing.T) {
	server, client := start(t, nil)
	if change, err := Apply(t.Context(), client, render(t, request(t))[0], true); err != nil || change.Outcome != Created {
		t.Fatalf("%+v, %v; want created", change, err)
	}
	if len(server.dryRun) != 1 || !server.dryRun[0] || len(server.objects) != 0 {
		t.Errorf("dry runs %v, objects %v: want one dry run and nothing created", server.dryRun, server.objects)
	}
}

// TestApplyAllWaitsForPullSecrets: CronJobs come last, because their pods may start at once, and it ends when a run can start. The server
// gives an account its pull secret as soon as the account is waited for.
func TestApplyAllWaitsForPullSecrets(t *testing.T) {
	const folder = "/api/v1/namespaces/team/serviceaccounts/"
	all := render(t, request(t))
	isCronJob := func(o *unstructured.Unstructured) bool { return o.GetKind() == "CronJob" }
	others := slices.DeleteFunc(slices.Clone(all), isCronJob)
	cronJobs := slices.DeleteFunc(slices.Clone(all), func(o *unstructured.Unstructured) bool { return !isCronJob(o) })
	for name, objects := range map[string][]*unstructured.Unstructured{"CronJobs": slices.Concat(cronJobs, others), "none": others} {
		t.Run(name, func(t *testing.T) {
			server, clients := startBoth(t, nil)
			server.put(folder+"default", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: team}, "+
				"imagePullSecrets: [{name: default-dockercfg-1}]}")
			var order []string
			say := func(line string) {
				order = append(order, line)
				server.mu.Lock()
				defer server.mu.Unlock()
				name := strings.Fields(line)[4]
				server.objects[folder+name]["imagePullSecrets"] = []any{map[string]any{"name": name + "-dockercfg-1"}}
			}
			if err := ApplyAll(t.Context(), clients, objects, say, func(c Change) { order = append(order, c.Object) }); err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, object := range others {
				want = append(want, ObjectName(object))
			}
			for _, object := range others {
				if object.GetKind() == "ServiceAccount" {
					want = append(want, "Waiting until service account "+object.GetName()+" has its pull secrets.")
				}
			}
			for _, object := range objects[:len(objects)-len(others)] {
				want = append(want, ObjectName(object))
			}
			if !slices.Equal(order, want) {
				t.Errorf("the order is\n%s\nwant\n%s", strings.Join(order, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func TestApplyRefused(t *testing.T) {
	tests := []struct {
		name   string
		refuse map[string]string
		reason fail.Reason
		next   string
	}{
		{
			"no Tekton",
			map[string]string{"/tasks/": `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"the server could ` +
				`not find the requested resource","details":{},"code":404}`},
			fail.InvalidInput, "OpenShift Pipelines",
		},
		{
			"no right",
			map[string]string{"/configmaps/": `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"configmaps ` +
				`\"x\" is forbidden: User \"me\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"team\"","code":403}`},
			fail.PermissionDenied, "--resource=configmaps",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, client := start(t, test.refuse)
			var err error
			for _, object := range render(t, request(t)) {
				if _, err = Apply(t.Context(), client, object, false); err != nil {
					break
				}
			}
			if fail.ReasonOf(err) != test.reason || !strings.Contains(fail.NextOf(err), test.next) {
				t.Errorf("%v: reason %s, next %q; want %s, %q", err, fail.ReasonOf(err), fail.NextOf(err), test.reason, test.next)
			}
		})
	}
}
