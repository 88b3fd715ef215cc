package install

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// apiServer keeps what is applied and gives it a new resource version when it
// differs. It merges nothing: an applied object replaces the one before.
type apiServer struct {
	mu      sync.Mutex
	objects map[string]map[string]any
	bodies  map[string]string
	version int
	// refuse answers requests whose path it is found in.
	refuse map[string]string
	dryRun []bool
}

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
	switch r.Method {
	case http.MethodGet:
		if s.objects[r.URL.Path] == nil {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{"name":"x"},"code":404}`)
			return
		}
	case http.MethodPatch:
		query := r.URL.Query()
		s.dryRun = append(s.dryRun, query.Get("dryRun") == "All")
		if query.Get("fieldManager") != fieldManager || query.Get("force") != "true" || r.Header.Get("Content-Type") != "application/apply-patch+yaml" {
			http.Error(w, "not an apply by "+fieldManager, http.StatusBadRequest)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if s.bodies[r.URL.Path] != string(body) {
			object := map[string]any{}
			if err := json.Unmarshal(body, &object); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			s.version++
			object["metadata"].(map[string]any)["resourceVersion"] = fmt.Sprint(s.version)
			s.objects[r.URL.Path], s.bodies[r.URL.Path] = object, string(body)
		}
	}
	if err := json.NewEncoder(w).Encode(s.objects[r.URL.Path]); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func start(t *testing.T, refuse map[string]string) (*apiServer, dynamic.Interface) {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]any{}, bodies: map[string]string{}, refuse: refuse}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := dynamic.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return s, client
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
	if _, err := Apply(t.Context(), client, render(t, request(t))[0], true); err != nil {
		t.Fatal(err)
	}
	if len(server.dryRun) != 1 || !server.dryRun[0] {
		t.Errorf("dry runs %v, want one", server.dryRun)
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
			map[string]string{"/tasks/": `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"the server could not find the requested resource","details":{},"code":404}`},
			fail.InvalidInput, "OpenShift Pipelines",
		},
		{
			"no right",
			map[string]string{"/configmaps/": `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"configmaps \"x\" is forbidden: User \"me\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"team\"","code":403}`},
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

func TestApplyUnknownKind(t *testing.T) {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "x"}}}
	if _, err := Apply(t.Context(), nil, object, false); err == nil {
		t.Error("a Pod was applied")
	}
}
