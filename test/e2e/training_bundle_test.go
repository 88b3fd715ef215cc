// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// releaseBundle pushes the Tekton bundles, lists them with the real tkn, and runs the test of each
// Task and Pipeline from the bundle. Such a test ends right after Tekton has resolved the bundle
// and started the steps' image on a node.
func releaseBundle(u trainer) {
	u.awaitPullSecret() // Tekton reads the bundle with it
	const at = registryHost + "/e2e/tasks:1"
	objects, err := bundle.Objects(mldevenv.Bundle)
	if err != nil {
		u.Fatal(err)
	}
	pushed := u.pushBundle(at, u.pushBundle(at+"-tasks"))
	listed, err := run(u.T, nil, stateDir+"/bin/tkn", "bundle", "list", pushed)
	if err != nil {
		u.Fatalf("tkn bundle list: %v\n%s", err, listed)
	}

	// In parallel, because each takes the time of a pod.
	started := map[string]bool{}
	for _, object := range objects {
		switch object.GetKind() {
		case "Task":
			u.mustContain(listed, "task.tekton.dev/"+object.GetName())
			u.startTest("tasks", object.GetName(), pushed)
			started[object.GetName()] = true
		case "Pipeline":
			u.mustContain(listed, "pipeline.tekton.dev/"+object.GetName())
			u.startTest("pipelines", object.GetName(), pushed)
		}
	}
	for _, task := range slices.Sorted(maps.Keys(started)) {
		_, results := u.taskEnd(task)
		u.equal("reason of task "+task, results["reason"], string(fail.InvalidInput))
	}
	for _, pipeline := range []string{"dev-environment", "train-multi-node"} {
		u.waitFor("condition=Succeeded=False", "pipelinerun/"+pipeline)
		// The Pipeline found its Tasks in their own bundle.
		_, results := u.taskEnd(pipeline + "-preflight")
		u.equal("reason of "+pipeline+"'s preflight", results["reason"], string(fail.InvalidInput))
	}
}

// pushBundle pushes what cmd/steps/release/bundle-objects prints with the real tkn, and returns the bundle by digest.
func (u trainer) pushBundle(to string, tasks ...string) string {
	u.Helper()
	objects, err := run(u.T, nil, filepath.Join(repository(u.T), "cmd/steps/release/bundle-objects"), append([]string{u.steps}, tasks...)...)
	if err != nil {
		u.Fatalf("cmd/steps/release/bundle-objects: %v\n%s", err, objects)
	}
	out, err := run(u.T, []byte(objects), stateDir+"/bin/tkn", "bundle", "push", to, "--filenames=-")
	digest := byDigest.FindString(out)
	if err != nil || digest == "" {
		u.Fatalf("tkn bundle push: %v\n%s", err, out)
	}
	return digest
}

// byDigest matches the bundle in what tkn bundle push prints.
var byDigest = regexp.MustCompile(`\S+@sha256:[0-9a-f]{64}`)

// startTest starts tests/run.yaml of a Task or Pipeline from a bundle. The run has the name of the Task or Pipeline.
func (u trainer) startTest(kind, named, from string) {
	u.Helper()
	content, err := os.ReadFile(filepath.Join(repository(u.T), kind, named, "tests", "run.yaml"))
	if err != nil {
		u.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: named, Namespace: u.namespace}
	ref := tekton.ResolverRef{Resolver: "bundles", Params: tekton.Params{
		{Name: "bundle", Value: *tekton.NewStructuredValues(from)},
		{Name: "name", Value: *tekton.NewStructuredValues(named)},
		{Name: "kind", Value: *tekton.NewStructuredValues(kind[:len(kind)-1])},
	}}
	if kind == "tasks" {
		taskRun := &tekton.TaskRun{}
		if err := yaml.UnmarshalStrict(content, taskRun); err != nil {
			u.Fatal(err)
		}
		taskRun.ObjectMeta, taskRun.Spec.TaskRef = meta, &tekton.TaskRef{ResolverRef: ref}
		if _, err := u.clients.Tekton.TektonV1().TaskRuns(u.namespace).Create(u.Context(), taskRun, metav1.CreateOptions{}); err != nil {
			u.Fatal(err)
		}
		return
	}
	pipelineRun := &tekton.PipelineRun{}
	if err := yaml.UnmarshalStrict(content, pipelineRun); err != nil {
		u.Fatal(err)
	}
	pipelineRun.ObjectMeta, pipelineRun.Spec.PipelineRef = meta, &tekton.PipelineRef{ResolverRef: ref}
	pipelineRun.Spec.TaskRunTemplate.ServiceAccountName = "mlenv-pipeline"
	if _, err := u.clients.Tekton.TektonV1().PipelineRuns(u.namespace).Create(u.Context(), pipelineRun, metav1.CreateOptions{}); err != nil {
		u.Fatal(err)
	}
}
