// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// peersDefaults gives trainer.yaml what Trainer's own runtime for torch has: a failed rank starts again in its pod.
var peersDefaults = edits{{"            backoffLimit: 0\n", ""}, {"                restartPolicy: Never\n", ""}}

// usesTrainer lets trainer.yaml train with trainer.py, and with the packages and notes on the claim of our environment.
var usesTrainer = edits{
	{"/bench/train.py ARGUMENTS", "/bench/trainer.py"},
	{"configMap: {name: train}", "configMap: {name: NAME}"},
	{"                  resources:\n", "                  env: [{name: PYTHONPATH, value: PACKAGES}, {name: STEPS, value: " + agent.Workspace +
		"/NAME}]\n                  resources:\n"},
	{"                volumes:\n", "                  - {name: workspace, mountPath: " + agent.Workspace + "}\n                volumes:\n" +
		"                - {name: workspace, persistentVolumeClaim: {claimName: " + ours + "-workspace}}\n"},
}

// keepsCheckpoints adds to trainer.yaml a claim where a new pod finds the checkpoints of the old one.
var keepsCheckpoints = edits{
	{"                  resources:\n", "                  workingDir: /kept\n                  resources:\n"},
	{"                volumes:\n", "                  - {name: kept, mountPath: /kept}\n                volumes:\n" +
		"                - {name: kept, persistentVolumeClaim: {claimName: NAME}}\n"},
	{"apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n", `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: nfs-csi
  resources: {requests: {storage: 1Gi}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
`},
}

// BenchmarkResumeOnCluster trains with the Trainer of transformers on two nodes, in turns by the steps and by Kubeflow Trainer with its
// defaults. The pod of rank 1 is deleted, as by a drain, and rank 1 is killed.
func BenchmarkResumeOnCluster(b *testing.B) {
	ctx, ns := b.Context(), withPeers(b)
	const requirements = "--requirements=requirements-resume.txt"
	check(b, errors.Join(ns.provision(ctx, ours, "rwx"), ns.sync(ctx, ours, requirements), ns.teardown(ctx, ours)))
	volume, err := ns.kubectl(ctx, "get", "persistentvolumeclaim", ours+"-workspace", "--output=jsonpath={.spec.volumeName}")
	check(b, err)
	workspace := filepath.Join(stateDir, "volumes", volume)
	packages, err := filepath.Glob(workspace + "/.mlenv/venvs/*/lib/python*/site-packages")
	check(b, err)
	if len(packages) == 0 {
		b.Fatalf("sync-repo installed no packages on %s", workspace)
	}
	steps := &resumer{name: "ml-dev-env, with max-restarts=1",
		begin: func(ctx context.Context, folder, run string) (*launch, error) {
			if err := errors.Join(ns.provision(ctx, ours, "rwx"), ns.sync(ctx, ours, requirements)); err != nil {
				return nil, err
			}
			l := &launch{run: run, folder: folder, notes: filepath.Join(workspace, run)}
			return l, l.start(ctx, ns.work+"/steps", "train", "--kubeconfig="+kubeconfig, "--namespace="+ns.name, "--name="+ours,
				"--script=trainer.py", "--max-restarts=1", "STEPS="+agent.Workspace+"/"+run)
		},
		remove: func(ctx context.Context, _ string) error { return ns.teardown(ctx, ours) },
	}
	ns.strikesPod(steps, "statefulset.kubernetes.io/pod-name="+node{ours, 1}.pod())
	peer := func(name string, script edits) *resumer {
		return ns.resumingPeer(name, script, workspace, agent.Workspace+strings.TrimPrefix(packages[0], workspace))
	}
	printTable(b, "resume_cluster", strikeInTurns(b, "rank 1's pod is deleted", "rank 1 is killed", steps,
		peer("Kubeflow Trainer", resumes),
		peer("Kubeflow Trainer, with enable_jit_checkpoint", slices.Concat(resumes, saves))))
}

// strikesPod lets a way strike the pod of rank 1, which the labels select, and the rank in it. RUN in them is the name of the run.
func (ns *namespace) strikesPod(w *resumer, labels string) {
	pod := func(ctx context.Context, l *launch) (string, error) {
		return ns.kubectl(ctx, "get", "pods", "--selector="+strings.ReplaceAll(labels, "RUN", l.run),
			"--output=jsonpath={.items[0].metadata.name}")
	}
	w.stop = func(ctx context.Context, l *launch, _ doneStep) (*launch, error) {
		name, err := pod(ctx, l)
		if err == nil {
			_, err = ns.kubectl(ctx, "delete", "pod", name, "--wait=false")
		}
		return l, err
	}
	w.kill = func(ctx context.Context, l *launch, rank doneStep) (*launch, error) {
		name, err := pod(ctx, l)
		if err == nil {
			_, err = ns.kubectl(ctx, "exec", name, "--", "kill", "-KILL", strconv.Itoa(rank.PID))
		}
		return l, err
	}
}

// resumingPeer trains by applying trainer.yaml. workspace is the folder of our environment's claim, and packages the path in it of
// the Python packages.
func (ns *namespace) resumingPeer(name string, script edits, workspace, packages string) *resumer {
	file := func(run string) string { return filepath.Join(ns.work, run+".yaml") }
	w := &resumer{name: name, script: script}
	w.begin = func(ctx context.Context, folder, run string) (*launch, error) {
		content, err := os.ReadFile("test/bench/testdata/trainer.yaml")
		if err != nil {
			return nil, err
		}
		text, _, err := slices.Concat(peersDefaults, usesTrainer).apply(string(content))
		if err != nil {
			return nil, err
		}
		if text, w.yamlLines, err = keepsCheckpoints.apply(text); err != nil {
			return nil, err
		}
		text = strings.NewReplacer("IMAGE", ns.training, "NAME", run, "PACKAGES", packages).Replace(text)
		if err := os.WriteFile(file(run), []byte(text), 0o644); err != nil {
			return nil, err
		}
		if _, err := ns.kubectl(ctx, "create", "configmap", run, "--from-file="+folder+"/trainer.py"); err != nil {
			return nil, err
		}
		if _, err := ns.kubectl(ctx, "apply", "--filename="+file(run)); err != nil {
			return nil, err
		}
		l := &launch{run: run, folder: folder, notes: filepath.Join(workspace, run)}
		kubectl := strings.Join(append([]string{kubectlProgram}, ns.kubectlArgs()...), " ")
		return l, l.start(ctx, "sh", "-c", strings.NewReplacer("KUBECTL", kubectl, "NAME", run, "TIME", fmt.Sprint(longest-longest/10)).Replace(
			`KUBECTL wait trainjob/NAME --for=condition=Complete --timeout=TIME ||
			 { KUBECTL get pods --selector=bench=NAME; KUBECTL logs --selector=bench=NAME --prefix --tail=30; false; }`))
	}
	w.remove = func(ctx context.Context, run string) error {
		_, err := ns.kubectl(ctx, "delete", "--filename="+file(run), "--timeout=2m")
		return err
	}
	ns.strikesPod(w, "bench=RUN,batch.kubernetes.io/job-completion-index=1")
	return w
}
