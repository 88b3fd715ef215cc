// SPDX-License-Identifier: Apache-2.0

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

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// ours selects every object of every environment.
const ours = "app.kubernetes.io/name=ml-dev-env"

// nothingLeft fails unless every environment of the namespace is gone and every claim still
// exists.
func (u trainer) nothingLeft() {
	u.Helper()
	core := u.clients.Kube.CoreV1()
	mustGo[*coordinationv1.Lease](u, "leases", u.clients.Kube.CoordinationV1().Leases(u.namespace))
	mustGo[*appsv1.StatefulSet](u, "statefulsets", u.clients.Kube.AppsV1().StatefulSets(u.namespace))
	mustGo[*corev1.Pod](u, "pods", core.Pods(u.namespace))
	mustGo[*corev1.Service](u, "services", core.Services(u.namespace))
	mustGo[*corev1.Secret](u, "secrets", core.Secrets(u.namespace))
	mustGo[*corev1.ServiceAccount](u, "serviceaccounts", core.ServiceAccounts(u.namespace))

	for _, event := range u.audited() {
		// The namespace controller empties an earlier namespace of the same name.
		if event.ObjectRef.Resource == "persistentvolumeclaims" && strings.HasPrefix(event.Verb, "delete") &&
			!strings.HasSuffix(event.User.Username, ":namespace-controller") {
			u.Errorf("%s asked to delete the claim %s", event.User.Username, event.ObjectRef.Name)
		}
	}
	claims, err := core.PersistentVolumeClaims(u.namespace).List(u.Context(), metav1.ListOptions{})
	if err != nil {
		u.Fatal(err)
	}
	for _, claim := range claims.Items {
		if claim.DeletionTimestamp != nil || len(claim.OwnerReferences) > 0 {
			u.Errorf("claim %s is being deleted since %v, or has owners: %v", claim.Name, claim.DeletionTimestamp, claim.OwnerReferences)
		}
	}
}

// mustGo watches until no object of a kind is left, for at most timeUntilAllIsReleased.
func mustGo[T metav1.Object, L runtime.Object](u trainer, kind string, source kube.Source[L]) {
	u.Helper()
	ctx, cancel := u.within(timeUntilAllIsReleased)
	defer cancel()
	var left []string
	err := kube.WatchUntil(ctx, kind, source, metav1.ListOptions{LabelSelector: ours}, func(found []T) (bool, error) {
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
	Verb                     string
	User                     struct{ Username string }
	ObjectRef                struct{ Resource, Namespace, Name string }
	RequestReceivedTimestamp time.Time
}

// audited returns the requests to the API server about the user's namespace since its creation.
func (u user) audited() []auditEvent {
	u.Helper()
	made, err := time.Parse(time.RFC3339, u.kubectl("get", "namespace", u.namespace, "--output=jsonpath={.metadata.creationTimestamp}"))
	if err != nil {
		u.Fatal(err)
	}
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
		if bytes.Contains(lines.Bytes(), []byte(u.namespace)) && json.Unmarshal(lines.Bytes(), &event) == nil &&
			event.ObjectRef.Namespace == u.namespace && !event.RequestReceivedTimestamp.Before(made) {
			events = append(events, event)
		}
	}
	if err := lines.Err(); err != nil {
		u.Fatal(err)
	}
	return events
}

// volume returns the folder on this machine that is the claim's volume.
func (u trainer) volume(claim string) string {
	u.Helper()
	return filepath.Join(stateDir, "volumes", u.kubectl("get", "persistentvolumeclaim", claim, "--output=jsonpath={.spec.volumeName}"))
}

// recordFolder returns the folder on this machine with a run's record, on the shared claim of ml-dev-env.
func (u trainer) recordFolder(runUID types.UID) string {
	u.Helper()
	return filepath.Join(u.workspaceHere(), ".mlenv", "runs", string(runUID))
}

// workspaceHere returns the folder on this machine that is the runs' workspace.
func (u trainer) workspaceHere() string {
	u.Helper()
	if u.workstation != nil {
		return filepath.Join(u.workstation.folder, "home", localFolder)
	}
	return u.volume("ml-dev-workspace")
}

// recorded returns a file of a run's record.
func (u trainer) recorded(runUID types.UID, file string) string {
	u.Helper()
	content, err := os.ReadFile(filepath.Join(u.recordFolder(runUID), file))
	if err != nil {
		u.Fatal(err)
	}
	return string(content)
}
