//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// ours selects every object of every environment.
const ours = "app.kubernetes.io/name=ml-dev-env"

// nothingLeft fails unless every environment of the namespace is gone, and every
// claim that there ever was is still there.
func (u trainer) nothingLeft() {
	u.Helper()
	core := u.clients.Kube.CoreV1()
	mustGo(u, "leases", u.clients.Kube.CoordinationV1().Leases(u.namespace))
	mustGo(u, "statefulsets", u.clients.Kube.AppsV1().StatefulSets(u.namespace))
	mustGo(u, "pods", core.Pods(u.namespace))
	mustGo(u, "services", core.Services(u.namespace))
	mustGo(u, "secrets", core.Secrets(u.namespace))
	mustGo(u, "serviceaccounts", core.ServiceAccounts(u.namespace))

	for _, event := range u.audited() {
		if event.ObjectRef.Resource == "persistentvolumeclaims" && strings.HasPrefix(event.Verb, "delete") {
			u.Errorf("%s asked to delete the claim %s", event.User.Username, event.ObjectRef.Name)
		}
	}
	claims, err := core.PersistentVolumeClaims(u.namespace).List(u.Context(), metav1.ListOptions{})
	if err != nil {
		u.Fatal(err)
	}
	for _, claim := range claims.Items {
		if claim.DeletionTimestamp != nil || len(claim.OwnerReferences) > 0 {
			u.Errorf("claim %s is being deleted since %v and would go with %v", claim.Name, claim.DeletionTimestamp, claim.OwnerReferences)
		}
	}
}

// mustGo watches until nothing of a kind is left; two minutes are what the design
// allows.
func mustGo[T metav1.Object, L runtime.Object](u trainer, kind string, source kube.Source[L]) {
	u.Helper()
	ctx, cancel := u.within(2 * time.Minute)
	defer cancel()
	var left []string
	err := kube.Until(ctx, kind, source, metav1.ListOptions{LabelSelector: ours}, func(found []T) (bool, error) {
		left = nil
		for _, object := range found {
			left = append(left, object.GetName())
		}
		return len(left) == 0, nil
	})
	if err != nil {
		u.Errorf("%s %v are left: %v", kind, left, err)
	}
}

// claimsAre fails unless the namespace has these claims and no others.
func (u trainer) claimsAre(names ...string) {
	u.Helper()
	got := u.kubectl("get", "persistentvolumeclaims", "--output=jsonpath={.items[*].metadata.name}")
	u.equal("the claims of "+u.namespace, got, strings.Join(names, " "))
}

// auditEvent is one line of the API server's audit log.
type auditEvent struct {
	Verb      string
	User      struct{ Username string }
	ObjectRef struct{ Resource, Namespace, Name string }
}

// audited is what was asked of the API server about the user's namespace.
func (u user) audited() []auditEvent {
	u.Helper()
	file, err := os.Open(stateDir + "/logs/audit.log")
	if err != nil {
		u.Fatal(err)
	}
	defer file.Close()
	var events []auditEvent
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event auditEvent
		if bytes.Contains(lines.Bytes(), []byte(u.namespace)) && json.Unmarshal(lines.Bytes(), &event) == nil && event.ObjectRef.Namespace == u.namespace {
			events = append(events, event)
		}
	}
	if err := lines.Err(); err != nil {
		u.Fatal(err)
	}
	return events
}

// record is the folder on this machine in which a run's record lies, on the
// claim that is given.
func (u trainer) record(claim, runUID string) string {
	u.Helper()
	volume := u.kubectl("get", "persistentvolumeclaim", claim, "--output=jsonpath={.spec.volumeName}")
	return filepath.Join(stateDir, "volumes", volume, ".mlenv", "runs", runUID)
}

// recorded is a file of the run's record on the shared claim of ml-dev-env.
func (e ending) recorded(file string) string {
	e.Helper()
	content, err := os.ReadFile(filepath.Join(e.record("ml-dev-workspace", string(e.run.UID)), file))
	if err != nil {
		e.Fatal(err)
	}
	return string(content)
}
