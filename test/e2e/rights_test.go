// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// apiRequest is a request of a run's steps in the API server's audit log.
type apiRequest struct {
	Verb      string
	User      struct{ Username string }
	ObjectRef struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	// Annotations show whether RBAC allowed the request: a 403 can also come from admission.
	Annotations              map[string]string
	RequestReceivedTimestamp time.Time
}

// right is what a request needs: group, resource with subresource, and verb.
type right struct{ group, resource, verb string }

func (u apiRequest) right() right {
	r := right{u.ObjectRef.APIGroup, u.ObjectRef.Resource, u.Verb}
	if u.ObjectRef.Subresource != "" {
		r.resource += "/" + u.ObjectRef.Subresource
	}
	return r
}

// testRights compares the requests of the runs since then with the Role: the API server allowed
// nothing outside the Role and the rights of clusters with Kueue or Prometheus, refused only what the optional ClusterRole grants, and
// every right that no run used has a reason. It checks the last point only if whole is set, that is, if all
// scenarios ran.
func testRights(t *testing.T, since time.Time, whole bool) {
	needed, looking := install.RoleRules()
	role := rightsOf(slices.Concat(needed, looking))
	observer := rightsOf(slices.Concat(install.ObserverRules(), install.QueueRules(), install.MonitoringRules()))
	seen, refused := map[right]bool{}, map[right]string{}
	for _, request := range requestsOf(t, launch.ServiceAccount, since) {
		asked := request.right()
		switch {
		case request.Annotations["authorization.k8s.io/decision"] == "forbid":
			refused[asked] = request.ObjectRef.Namespace
		case role[asked]:
			seen[asked] = true
		case !observer[asked] && !everybodys(asked):
			t.Errorf("%s of namespace %s did %v, which the Role does not grant", request.User.Username, request.ObjectRef.Namespace, asked)
		}
	}
	for asked, namespace := range refused {
		if !observer[asked] {
			t.Errorf("%v was refused in namespace %q: add it to the Role, or do not request it", asked, namespace)
		}
	}
	if len(seen) == 0 {
		t.Fatal("the audit log has no request of a step")
	}
	why := map[right]string{}
	for _, u := range unusedRights() {
		for _, verb := range u.verbs {
			why[right{u.group, u.resource, verb}] = u.why
		}
	}
	for given := range role {
		switch reason := why[given]; {
		case seen[given] && reason != "":
			t.Logf("%v was used although unusedRights lists it: %s", given, reason)
		case !seen[given] && reason == "" && whole:
			t.Errorf("no run used %v: remove it from the Role, or add it to unusedRights with a reason", given)
		}
	}
}

func rightsOf(rules []rbacv1.PolicyRule) map[right]bool {
	all := map[right]bool{}
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				all[right{rule.APIGroups[0], resource, verb}] = true
			}
		}
	}
	return all
}

// everybodys reports whether Kubernetes allows the request to every account. It allows discovery of the API, and
// reviews of the caller's own rights.
func everybodys(asked right) bool {
	return asked.resource == "" || strings.HasPrefix(asked.resource, "selfsubject")
}

// requestsOf returns the requests of the service accounts of that name, in all namespaces.
func requestsOf(t *testing.T, name string, since time.Time) []apiRequest {
	t.Helper()
	// The API server rotates the log to audit-TIME.log.
	logs, err := filepath.Glob(stateDir + "/logs/audit*.log")
	if err != nil {
		t.Fatal(err)
	}
	account := []byte(":" + name + `"`)
	var requests []apiRequest
	for _, path := range logs {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			var request apiRequest
			if bytes.Contains(lines.Bytes(), account) && json.Unmarshal(lines.Bytes(), &request) == nil &&
				strings.HasSuffix(request.User.Username, ":"+name) && !request.RequestReceivedTimestamp.Before(since) {
				requests = append(requests, request)
			}
		}
		file.Close()
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return requests
}

// wholeSuite reports whether all tests were selected and none has failed.
func wholeSuite(t *testing.T) bool {
	chosen := flag.Lookup("test.run")
	return !t.Failed() && os.Getenv(setVariable) == "" && (chosen == nil || chosen.Value.String() == "" ||
		chosen.Value.String() == "TestCluster")
}
