// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/schedule"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestRightsPageIsCurrent: docs/reference/rights.md has every right of the accounts, with its reason; -update writes its tables.
func TestRightsPageIsCurrent(t *testing.T) {
	const page = "../../docs/reference/rights.md"
	needed, looking := install.RoleRules()
	installed, err := install.Render(install.Request{Namespace: "ml", ServiceAccount: "mlenv-pipeline"}, mldevenv.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	scheduled, err := install.Untyped(schedule.Schedule{Name: "nightly", At: "02:30"}.Objects("ml", "steps"))
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []struct {
		name  string
		rules []rbacv1.PolicyRule
		// why has the reason of each rule, by its first resource.
		why map[string]string
	}{
		{"steps", needed, map[string]string{
			"leases":                 "the Lease records who holds an environment, and owns its other objects",
			"statefulsets":           "create and delete the pods of an environment",
			"services":               "the DNS names of the pods, and the account under which they run",
			"configmaps":             "receipts",
			"persistentvolumeclaims": "provision creates claims, makes them larger and watches them; no step can delete a claim",
			"secrets":                "the certificates of agents and steps, the passwords of services",
			"routes":                 "routes to services, if the run or its user requests them",
			"pods": "the state of the pods; teardown deletes them, and a deleted pod is created again, for example on another " +
				"Kubernetes node",
			"events":                         "why a pod does not start",
			"resourcequotas":                 "why a pod does not start",
			"pipelineruns":                   "the run's own deadlines and params",
			"taskruns":                       "the params of each step, and how the run's tasks ended",
			"buildconfigs":                   "the definition of the training image's build",
			"buildconfigs/instantiatebinary": "to start a build with its folder",
			"builds":                         "to follow a build; an update cancels it, or records who waits for it",
			"builds/log":                     "the log of the build",
			"imagestreams":                   "the target of the build",
			"imagestreamtags":                "the digest of the image that was built",
			"imagestreamimports":             "the digest of a base image, which the API server reads from its registry; nothing is imported",
			"imagestreams/layers":            "whether the registry still has the image",
		}},
		{"looking", looking, map[string]string{
			"pods":                           "preflight sends the exact pod as a dry run. RBAC has no right for dry runs only",
			"localsubjectaccessreviews":      "what the account of the training pods may do",
			"limitranges":                    "whether the pods are within the limits",
			"network-attachment-definitions": "attachments in this namespace",
		}},
		{"queue", install.QueueRules(), map[string]string{
			"localqueues":                  "whether the queue is active, and what the run waits for",
			"localqueues/pendingworkloads": "the run's position in the queue",
		}},
		{"monitoring", install.MonitoringRules(), map[string]string{"podmonitors": "by which Prometheus finds the pods of an environment"}},
		{"observer", install.ObserverRules(), map[string]string{
			"nodes":                          "which Kubernetes nodes fit, why others do not, and in which rack they are",
			"pods":                           "who holds the GPUs that are not free",
			"storageclasses":                 "what a storage class can do, such as shared files or larger claims",
			"persistentvolumeclaims":         "whether the server of a storage class waits for its own claim",
			"machineconfigs":                 "whether Kubernetes nodes booted with `iommu=pt`, and how much memory containers may lock",
			"network-attachment-definitions": "attachments of the namespace `default`",
			"securitycontextconstraints":     "the users and groups that a constraint lists itself",
			"subjectaccessreviews":           "whether the accounts may pull an image of another namespace",
			"clusterqueues":                  "the topology of a queue's flavours, and whether a priority exists",
		}},
		{"reaper", rulesOf(t, installed, "mlenv-reaper"), map[string]string{
			"leases":       "who holds an environment; deleting the Lease releases it",
			"pipelineruns": "whether the holder is still running",
			"taskruns":     "the content of a receipt that the run did not write; an annotation for a step whose pod Tekton has lost",
			"pods":         "whether a step of the run is left; the training pods, which it asks for their last use",
			"statefulsets": "how many pods an environment has, and whether they are gone",
			"configmaps":   "receipts, and the certificate with which it asks for the last use",
			"events":       "what was released, or will be soon",
		}},
		{"schedule", rulesOf(t, scheduled, "mlenv-nightly"), map[string]string{
			"cronjobs":        "its own CronJob, for the params of the run",
			"jobs":            "the scheduled time",
			"pipelines":       "the params that the installed pipeline has",
			"serviceaccounts": "to wait for the pull secrets of the account of the steps",
			"pipelineruns":    "to start the run, to follow it, and to see who holds the environment",
			"taskruns":        "the progress of the run",
			"leases":          "who holds the environment",
			"configmaps":      "receipts of earlier nights; it adds the comparison to this night's receipt",
		}},
	} {
		var text strings.Builder
		text.WriteString("| resources | verbs | why |\n| --- | --- | --- |\n")
		for _, rule := range table.rules {
			why := table.why[rule.Resources[0]]
			if why == "" {
				t.Errorf("%s: %v has no reason", table.name, rule.Resources)
			}
			delete(table.why, rule.Resources[0])
			fmt.Fprintf(&text, "| %s | %s | %s |\n", strings.Join(rule.Resources, ", "), strings.Join(rule.Verbs, ", "), why)
		}
		if len(table.why) > 0 {
			t.Errorf("%s: reasons for rights that the account does not have: %v", table.name, table.why)
		}
		begin := fmt.Sprintf("<!-- %s: written by go test ./internal/install -run TestRightsPageIsCurrent -update -->\n", table.name)
		golden.Section(t, page, begin, text.String())
		if is, err := os.ReadFile(page); err != nil || !strings.Contains(string(is), begin+text.String()+"<!-- end -->") {
			t.Errorf("%s: the table %s is not current (%v); the flag -update writes it", page, table.name, err)
		}
	}
}

// rulesOf returns the rules of the Role with this name.
func rulesOf(t *testing.T, objects []*unstructured.Unstructured, name string) []rbacv1.PolicyRule {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == "Role" && object.GetName() == name {
			var role rbacv1.Role
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
				t.Fatal(err)
			}
			return role.Rules
		}
	}
	t.Fatalf("no Role %s", name)
	return nil
}
