// SPDX-License-Identifier: Apache-2.0

package install

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const (
	observer = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/mlenv-observer-team"
	oldTask  = "/apis/tekton.dev/v1/namespaces/team/tasks/old"
	foreign  = "/apis/tekton.dev/v1/namespaces/team/tasks/foreign"
	another  = "/api/v1/namespaces/team/configmaps/mlenv-cluster-other"
	claim    = "/api/v1/namespaces/team/persistentvolumeclaims/ml-dev-workspace"
	account  = "/api/v1/namespaces/team/configmaps/run-receipt"
	busyRun  = "/apis/tekton.dev/v1/namespaces/team/pipelineruns/nightly"
	held     = "/apis/coordination.k8s.io/v1/namespaces/team/leases/ml-dev-env"
)

// furnish adds objects of other users, of an earlier install and of runs to the namespace.
func furnish(s *apiServer) {
	s.put(oldTask, "{apiVersion: tekton.dev/v1, kind: Task, metadata: {name: old, namespace: team, uid: u1, labels: "+
		"{ml-dev-env.github.io/part: namespace}}}")
	s.put(foreign, "{apiVersion: tekton.dev/v1, kind: Task, metadata: {name: foreign, namespace: team}}")
	s.put(another, "{apiVersion: v1, kind: ConfigMap, metadata: {name: mlenv-cluster-other, namespace: team, labels: "+
		"{ml-dev-env.github.io/part: namespace}}}")
	s.put(claim, "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: ml-dev-workspace, namespace: team, labels: "+
		"{ml-dev-env.github.io/environment: ml-dev-env}}, spec: {resources: {requests: {storage: 100Gi}}}}")
	s.put(account, `{apiVersion: v1, kind: ConfigMap, metadata: {name: run-receipt, namespace: team, labels: `+
		`{ml-dev-env.github.io/receipt: "true"}}}`)
}

func said(t *testing.T) func(string) { return func(line string) { t.Log(line) } }

func text(report Report) string {
	var out strings.Builder
	_ = report.Print(&out) // a strings.Builder returns no error
	return out.String()
}

func TestInstallDryRunShowsDiff(t *testing.T) {
	server, clients := startBoth(t, nil)
	r := request(t)
	if _, err := Install(t.Context(), clients, "team", render(t, r), false, said(t)); err != nil {
		t.Fatal(err)
	}
	furnish(server)
	before := len(server.objects)
	r.ClusterFile = []byte(strings.Replace(clusterFile, "per_node: 8", "per_node: 4", 1))
	r.Cluster.GPUs.PerNode = 4
	report, err := Install(t.Context(), clients, "team", render(t, r), true, said(t))
	if err != nil {
		t.Fatal(err)
	}
	got := text(report)
	for _, want := range []string{
		"configmap/mlenv-cluster-small changed\n", "-    gpus: {per_node: 8, default_nodes: 3}\n+    gpus: {per_node: 4, default_nodes: 3}\n",
		"role/mlenv-pipeline unchanged\n", "task/mlenv-provision unchanged\n", "task/old deleted\n", "nothing was changed",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	for _, never := range []string{"managedFields", "resourceVersion", "foreign", "mlenv-cluster-other"} {
		if strings.Contains(got, never) {
			t.Errorf("%q is in:\n%s", never, got)
		}
	}
	if len(server.objects) != before {
		t.Errorf("%d objects, want %d as before", len(server.objects), before)
	}
}

func TestInstallPrunesItsOwn(t *testing.T) {
	server, clients := startBoth(t, nil)
	furnish(server)
	report, err := Install(t.Context(), clients, "team", render(t, request(t)), false, said(t))
	if err != nil {
		t.Fatal(err)
	}
	if server.objects[oldTask] != nil || !strings.Contains(text(report), "task/old deleted") {
		t.Errorf("the old task still exists, or is not reported:\n%s", text(report))
	}
	for _, path := range []string{foreign, another, claim, account} {
		if server.objects[path] == nil {
			t.Errorf("%s was deleted", path)
		}
	}
}

// TestInstallCreatesTheNodesAccount tests that install creates it, and takes over none that is there.
func TestInstallCreatesTheNodesAccount(t *testing.T) {
	const path = "/api/v1/namespaces/team/serviceaccounts/ml-dev-sa"
	const administrators = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: ml-dev-sa, namespace: team, " +
		"labels: {app.kubernetes.io/part-of: ml-dev-env}}, imagePullSecrets: [{name: linked}]}"
	for _, test := range []struct{ name, before, want string }{
		{"none", "", "serviceaccount/ml-dev-sa created"},
		{"an administrator's", administrators, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, clients := startBoth(t, nil)
			if test.before != "" {
				server.put(path, test.before)
			}
			for range 2 {
				report, err := Install(t.Context(), clients, "team", render(t, request(t)), false, said(t))
				if err != nil {
					t.Fatal(err)
				}
				if got := text(report); test.want == "" && strings.Contains(got, "ml-dev-sa") || !strings.Contains(got, test.want) {
					t.Errorf("want %q in:\n%s", test.want, got)
				}
				test.want = strings.Replace(test.want, "created", "unchanged", 1)
			}
			if _, err := Uninstall(t.Context(), clients, Removal{Namespace: "team"}); err != nil {
				t.Fatal(err)
			}
			if left := server.objects[path] != nil; left != (test.before != "") {
				t.Errorf("after uninstall the account exists: %v", left)
			}
		})
	}
}

// TestInstallTakesOverTheStepsAccount tests that an account of the steps that is there becomes the one of install, which waits for its
// pull secrets.
func TestInstallTakesOverTheStepsAccount(t *testing.T) {
	server, clients := startBoth(t, nil)
	server.put("/api/v1/namespaces/team/serviceaccounts/mlenv-pipeline",
		"{apiVersion: v1, kind: ServiceAccount, metadata: {name: mlenv-pipeline, namespace: team}}")
	report, err := Install(t.Context(), clients, "team", render(t, request(t)), false, said(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := text(report), "serviceaccount/mlenv-pipeline changed\n"; !strings.Contains(got, want) {
		t.Errorf("want %q in:\n%s", want, got)
	}
}

// TestInstallTakesNothingFromOthers: each object of another's that has the name of one of ours is named, and nothing changes. A Task that
// was applied by hand from the bundle is ours.
func TestInstallTakesNothingFromOthers(t *testing.T) {
	server, clients := startBoth(t, nil)
	var want []string
	for _, object := range render(t, request(t)) {
		if object.GetKind() == "ServiceAccount" {
			continue
		}
		others := &unstructured.Unstructured{Object: map[string]any{"apiVersion": object.GetAPIVersion(), "kind": object.GetKind()}}
		others.SetName(object.GetName())
		others.SetNamespace(object.GetNamespace())
		path := "/" + Resource(object).Group + "/" + Resource(object).Version
		if path = "/apis" + path; Resource(object).Group == "" {
			path = "/api/v1"
		}
		if object.GetNamespace() != "" {
			path += "/namespaces/" + object.GetNamespace()
		}
		switch {
		case object.GetKind() == "Pipeline":
			others.SetAnnotations(object.GetAnnotations())
		case object.GetKind() == "ConfigMap": // a build makes that of certificates, and people that of the cluster file
		default:
			want = append(want, "applying "+ObjectName(object)+": it exists, and mlenv did not create it")
		}
		text, err := others.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		server.put(path+"/"+Resource(object).Resource+"/"+object.GetName(), string(text))
	}
	before := maps.Clone(server.objects)
	_, err := Install(t.Context(), clients, "team", render(t, request(t)), false, said(t))
	if fail.ReasonOf(err) != fail.InvalidInput {
		t.Fatalf("got %v", err)
	}
	for _, each := range want {
		if !strings.Contains(err.Error(), each) {
			t.Errorf("want %q in %v", each, err)
		}
	}
	if strings.Contains(err.Error(), "pipeline/train") || !maps.EqualFunc(before, server.objects, func(a, b map[string]any) bool {
		return cmp.Equal(a, b)
	}) {
		t.Errorf("something changed, or our own pipeline is refused: %v", err)
	}
}

func TestInstallChangesNothingWithoutRights(t *testing.T) {
	tests := []struct {
		name   string
		mayNot []string
		want   string
	}{
		{"to bind", []string{"create rolebindings"}, "rolebindings.rbac.authorization.k8s.io mlenv-pipeline in team: may not create"},
		{"to delete what is left over", []string{"delete tasks"}, "tasks.tekton.dev old in team: may not delete"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server, clients := startBoth(t, nil)
			furnish(server)
			server.mayNot = test.mayNot
			before := len(server.objects)
			_, err := Install(t.Context(), clients, "team", render(t, request(t)), false, said(t))
			if fail.ReasonOf(err) != fail.PermissionDenied || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if len(server.objects) != before || len(server.dryRun) != 0 {
				t.Errorf("%d objects and %d applies, want nothing touched", len(server.objects), len(server.dryRun))
			}
		})
	}
}

func TestUninstall(t *testing.T) {
	server, clients := startBoth(t, nil)
	admin := request(t)
	admin.ClusterRole = true
	if _, err := Install(t.Context(), clients, "team", render(t, admin), false, said(t)); err != nil {
		t.Fatal(err)
	}
	furnish(server)
	dry, err := Uninstall(t.Context(), clients, Removal{Namespace: "team", DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	report, err := Uninstall(t.Context(), clients, Removal{Namespace: "team"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(dry.Changes, report.Changes); diff != "" {
		t.Errorf("the dry run reported something else (-dry +done):\n%s", diff)
	}
	for _, want := range []string{"ml-dev-workspace (100Gi); to delete one: mlenv claims delete NAME -n team", "not deleted: 1 receipt",
		"not deleted: clusterrolebinding/mlenv-observer-team"} {
		if !strings.Contains(text(report), want) {
			t.Errorf("%q is missing in:\n%s", want, text(report))
		}
	}
	want := []string{account, claim, observer, "/apis/rbac.authorization.k8s.io/v1/clusterroles/mlenv-observer", foreign}
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), paths(server)); diff != "" {
		t.Errorf("remaining objects (-want +got):\n%s", diff)
	}
	again, err := Uninstall(t.Context(), clients, Removal{Namespace: "team"})
	if err != nil || len(again.Changes) > 0 {
		t.Errorf("again: %v, %v; want nothing to do", again.Changes, err)
	}
	if _, err := Uninstall(t.Context(), clients, Removal{Namespace: "team", Admin: true, Receipts: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{claim, foreign}, paths(server)); diff != "" {
		t.Errorf("remaining objects in the end (-want +got):\n%s", diff)
	}
}

func paths(s *apiServer) []string {
	var all []string
	for path := range s.objects {
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

func TestUninstallRefusesWhileInUse(t *testing.T) {
	server, clients := startBoth(t, nil)
	if _, err := Install(t.Context(), clients, "team", render(t, request(t)), false, said(t)); err != nil {
		t.Fatal(err)
	}
	server.put(busyRun,
		`{apiVersion: tekton.dev/v1, kind: PipelineRun, metadata: {name: nightly, namespace: team, labels: {tekton.dev/pipeline: `+
			`train-multi-node}}, status: {conditions: [{type: Succeeded, status: Unknown}]}}`)
	server.put(busyRun+"-done",
		`{apiVersion: tekton.dev/v1, kind: PipelineRun, metadata: {name: done, namespace: team, labels: {tekton.dev/pipeline: `+
			`train-multi-node}}, status: {conditions: [{type: Succeeded, status: "True"}]}}`)
	server.put(busyRun+"-other",
		`{apiVersion: tekton.dev/v1, kind: PipelineRun, metadata: {name: other, namespace: team, labels: {tekton.dev/pipeline: somebody-elses}}}`)
	server.put(held, `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: ml-dev-env, namespace: team, uid: u2, labels: `+
		`{ml-dev-env.github.io/environment: ml-dev-env}, annotations: {ml-dev-env.github.io/holder-name: h-kim}}}`)
	const taskRun = "/apis/tekton.dev/v1/namespaces/team/taskruns/other-train"
	server.put(taskRun, `{apiVersion: tekton.dev/v1, kind: TaskRun, metadata: {name: other-train, namespace: team, labels: `+
		`{tekton.dev/task: mlenv-train, tekton.dev/pipelineRun: other}}}`)
	before := len(server.objects)
	_, err := Uninstall(t.Context(), clients, Removal{Namespace: "team"})
	want := "want no run in progress and no environment, found 3:\n  pipelinerun/nightly\n  taskrun/other-train\n  environment ml-dev-env, " +
		"held by h-kim"
	if fail.ReasonOf(err) != fail.EnvironmentBusy || !strings.Contains(err.Error(), want) || len(server.objects) != before {
		t.Errorf("got %v; want %q and nothing deleted", err, want)
	}
	server.deleted = func(path string) { // provision was about to create it, and has lost the right to tear it down
		if path == held && server.objects[path] == nil {
			server.deleted = nil
			server.put(held, `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: ml-dev-env, namespace: team, uid: u3, labels: `+
				`{ml-dev-env.github.io/environment: ml-dev-env}}}`)
		}
	}
	server.put("/api/v1/namespaces/team/pods/done-train",
		`{apiVersion: v1, kind: Pod, metadata: {name: done-train, namespace: team, labels: {tekton.dev/pipeline: train-multi-node}}}`)
	report, err := Uninstall(t.Context(), clients, Removal{Namespace: "team", EndRuns: true})
	if err != nil {
		t.Fatal(err)
	}
	if left := "not deleted: 2 PipelineRuns with 1 pod; "; !strings.Contains(text(report), left) {
		t.Errorf("%q is missing in:\n%s", left, text(report))
	}
	if server.objects[held] != nil || server.bodies[busyRun] != `{"spec":{"status":"Cancelled"}}` {
		t.Errorf("lease %v, patch %q; want it deleted and the run cancelled", server.objects[held], server.bodies[busyRun])
	}
	first := []Change{{Object: "pipelinerun/nightly", Outcome: Cancelled}, {Object: "taskrun/other-train", Outcome: Cancelled},
		{Object: "lease/ml-dev-env", Outcome: Deleted}}
	if got := report.Changes[:3]; !slices.Equal(got, first) {
		t.Errorf("the first changes are %v", got)
	}
}

func TestUninstallChangesNothingWithoutRights(t *testing.T) {
	server, clients := startBoth(t, nil)
	if _, err := Install(t.Context(), clients, "team", render(t, request(t)), false, said(t)); err != nil {
		t.Fatal(err)
	}
	server.mayNot = []string{"delete roles"}
	before := len(server.objects)
	_, err := Uninstall(t.Context(), clients, Removal{Namespace: "team"})
	if fail.ReasonOf(err) != fail.PermissionDenied || len(server.objects) != before {
		t.Errorf("got %v and %d objects; want PermissionDenied and %d", err, len(server.objects), before)
	}
}

// A run in progress whose Tasks change is named.
func TestInstallNamesRunsThatMix(t *testing.T) {
	server, clients := startBoth(t, nil)
	furnish(server)
	r := request(t)
	if _, err := Install(t.Context(), clients, "team", render(t, r), false, said(t)); err != nil {
		t.Fatal(err)
	}
	server.put(busyRun,
		`{apiVersion: tekton.dev/v1, kind: PipelineRun, metadata: {name: nightly, namespace: team, labels: {tekton.dev/pipeline: `+
			`train-multi-node}}, status: {conditions: [{type: Succeeded, status: Unknown}]}}`)
	for image, want := range map[string]bool{r.StepsImage: false, strings.ReplaceAll(r.StepsImage, "1", "2"): true} {
		r.StepsImage = image
		report, err := Install(t.Context(), clients, "team", render(t, r), true, said(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(report.Notes, "\n"), "pipelinerun/nightly"); got != want {
			t.Errorf("%s: notes %q, want that the run is named: %t", image, report.Notes, want)
		}
	}
}
