// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/stepimage"
)

func withoutCluster(b *testing.B) {
	b.Helper()
	if _, err := os.Stat(stateDir); err == nil {
		b.Fatal("a local cluster is running; remove it first: make cluster-down")
	}
}

// BenchmarkColdUp times up with an empty cache and an empty compiler cache: about 15 minutes on 2 cores. It downloads
// the modules before the timed part, because it does not measure the network.
func BenchmarkColdUp(b *testing.B) {
	withoutCluster(b)
	var cold []float64
	for b.Loop() {
		work := b.TempDir()
		env := []string{"XDG_CACHE_HOME=" + filepath.Join(work, "cache"), "GOCACHE=" + filepath.Join(work, "go-build")}
		check(b, timed(&cold, func() error { return localcluster(b.Context(), env, "up") }))
		check(b, localcluster(b.Context(), env, "down", "--purge"))
	}
	table := newTable("up with empty caches: two nodes, Tekton ready")
	table.add("up, cold", "s", cold)
	table.print(b, "")
}

// BenchmarkCluster times up with everything in the cache, a PipelineRun of one Go step, and down.
func BenchmarkCluster(b *testing.B) {
	withoutCluster(b)
	ctx := b.Context()
	// This fills the cache with the programs and images.
	for _, command := range []string{"up", "down"} {
		check(b, localcluster(ctx, nil, command))
	}
	var up, again, pipeline, pod, down []float64
	for b.Loop() {
		for _, into := range []*[]float64{&up, &again} {
			check(b, timed(into, func() error { return localcluster(ctx, nil, "up") }))
		}
		image, err := preparePipeline(ctx, b.TempDir())
		check(b, err)
		// The first run pulls images and does not count.
		var first []float64
		check(b, pipelineRun(ctx, image, "bench-0", &first, &first))
		check(b, pipelineRun(ctx, image, "bench-1", &pipeline, &pod))
		check(b, timed(&down, func() error { return localcluster(ctx, nil, "down") }))
	}
	table := newTable("the local cluster: two nodes, Tekton ready")
	table.add("up, warm", "s", up, less(up, 45, "the aim of 45 s"))
	table.add("up, of a running cluster", "s", again, less(again, 3, "the aim of 3 s"))
	table.add("PipelineRun of one Go step", "s", pipeline, less(pipeline, 6, "the aim of 6 s"),
		times(pipeline, pod, 0, "the same step as a bare pod"))
	table.add("… the same step as a bare pod", "s", pod)
	table.add("down", "s", down, less(down, 10, "the aim of 10 s"))
	table.print(b, "")
}

func timed(into *[]float64, run func() error) error {
	start := time.Now()
	err := run()
	*into = append(*into, since(start))
	return err
}

func localcluster(ctx context.Context, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "bin/localcluster", args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("localcluster %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

const pipelineYAML = `
apiVersion: tekton.dev/v1
kind: Pipeline
metadata: {name: one-step, namespace: bench}
spec:
  tasks:
  - name: only
    taskSpec:
      steps: [{name: step, image: %q, command: [/step], args: [bench]}]
`

const pipelineRunYAML = `
apiVersion: tekton.dev/v1
kind: PipelineRun
metadata: {name: %q, namespace: bench}
spec: {pipelineRef: {name: one-step}}
`

const podYAML = `
apiVersion: v1
kind: Pod
metadata: {name: %q, namespace: bench}
spec:
  restartPolicy: Never
  containers: [{name: step, image: %q, command: [/step], args: [bench]}]
`

// preparePipeline creates the namespace and the Pipeline and returns its step's image.
func preparePipeline(ctx context.Context, dir string) (image string, err error) {
	digest, err := stepimage.Build(ctx, dir)
	if err != nil {
		return "", err
	}
	if err := localcluster(ctx, nil, "load", "--as=bench/step:1", dir); err != nil {
		return "", err
	}
	image = registry + "/bench/step@" + digest.String()
	if err := kubectl(ctx, "", "create", "namespace", "bench"); err != nil {
		return "", err
	}
	return image, kubectl(ctx, fmt.Sprintf(pipelineYAML, image), "apply", "-f", "-")
}

// pipelineRun times a PipelineRun, and a pod with the same step. The name must be new: a run with an old name would find
// the TaskRun of the old run.
func pipelineRun(ctx context.Context, image, name string, run, pod *[]float64) error {
	const timeForARunToSucceed = "2m"
	for _, object := range []struct {
		into             *[]float64
		yaml, wait, name string
	}{
		{run, fmt.Sprintf(pipelineRunYAML, name), "--for=condition=Succeeded", "pipelinerun/" + name},
		{pod, fmt.Sprintf(podYAML, name, image), "--for=jsonpath={.status.phase}=Succeeded", "pod/" + name},
	} {
		if err := timed(object.into, func() error {
			if err := kubectl(ctx, object.yaml, "create", "-f", "-"); err != nil {
				return err
			}
			return kubectl(ctx, "", "wait", "-n", "bench", "--timeout="+timeForARunToSucceed, object.wait, object.name)
		}); err != nil {
			return err
		}
		if err := kubectl(ctx, "", "delete", "-n", "bench", object.name); err != nil {
			return err
		}
	}
	return nil
}

func kubectl(ctx context.Context, stdin string, args ...string) error {
	cmd := exec.CommandContext(ctx, kubectlProgram, append([]string{"--kubeconfig=" + kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
