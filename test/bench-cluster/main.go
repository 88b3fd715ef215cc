// Command bench-cluster times the local cluster: up with nothing in the cache,
// up with everything in it, a PipelineRun of one Go step, and down.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/stepimage"
)

const stateDir = "/var/lib/ml-dev-env-localcluster"

func main() { os.Exit(run()) }

func run() int {
	cold := flag.Bool("cold", true, "also time the first up, which compiles everything and builds the images (about 15 minutes on 2 cores)")
	runs := flag.Int("runs", 3, "how often to time everything else; the result is the median")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := bench(ctx, *cold, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cluster:", err)
		return 1
	}
	return 0
}

func bench(ctx context.Context, cold bool, runs int) (err error) {
	if runs < 1 {
		return errors.New("-runs must be at least 1")
	}
	if _, err := os.Stat(stateDir); err == nil {
		return errors.New("a local cluster is running; remove it first: make cluster-down")
	}
	work, err := os.MkdirTemp("", "bench-cluster-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	fmt.Printf("%d cores, %s/%s, %s; two nodes, Tekton ready\n\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	if cold {
		elapsed, err := coldUp(ctx, work)
		if err != nil {
			return err
		}
		report("up, cold (empty caches)", []time.Duration{elapsed}, 0)
	}
	// The programs and images must be in the cache from here on.
	for _, args := range [][]string{{"up"}, {"down"}} {
		if err := localcluster(ctx, nil, args...); err != nil {
			return err
		}
	}
	var up, again, pipeline, tasks, down []time.Duration
	for range runs {
		for _, step := range []struct {
			into *[]time.Duration
			run  func() error
		}{
			{&up, func() error { return localcluster(ctx, nil, "up") }},
			{&again, func() error { return localcluster(ctx, nil, "up") }},
		} {
			if err := timed(step.into, step.run); err != nil {
				return err
			}
		}
		image, err := preparePipeline(ctx, work)
		if err != nil {
			return err
		}
		// The first run pulls images and does not count.
		for i := range 2 {
			elapsed, pod, err := pipelineRun(ctx, image, fmt.Sprintf("bench-%d", i))
			if err != nil {
				return err
			}
			if i > 0 {
				pipeline, tasks = append(pipeline, elapsed), append(tasks, pod)
			}
		}
		if err := timed(&down, func() error { return localcluster(ctx, nil, "down") }); err != nil {
			return err
		}
	}
	report("up, warm", up, 45*time.Second)
	report("up, of a running cluster", again, 3*time.Second)
	report("PipelineRun of one Go step", pipeline, 6*time.Second)
	report("  the same step as a bare pod", tasks, 0)
	fmt.Printf("  %-30s %6.1f x\n", "PipelineRun / bare pod", median(pipeline).Seconds()/median(tasks).Seconds())
	report("down", down, 10*time.Second)
	return nil
}

func timed(into *[]time.Duration, run func() error) error {
	start := time.Now()
	err := run()
	*into = append(*into, time.Since(start))
	return err
}

// coldUp times up with an empty cache and an empty compiler cache. It downloads the modules
// before, because it does not measure the network.
func coldUp(ctx context.Context, work string) (time.Duration, error) {
	env := []string{"XDG_CACHE_HOME=" + filepath.Join(work, "cache"), "GOCACHE=" + filepath.Join(work, "go-build")}
	var elapsed []time.Duration
	if err := timed(&elapsed, func() error { return localcluster(ctx, env, "up") }); err != nil {
		return 0, err
	}
	return elapsed[0], localcluster(ctx, env, "down", "--purge")
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
func preparePipeline(ctx context.Context, work string) (image string, err error) {
	dir, err := os.MkdirTemp(work, "step-")
	if err != nil {
		return "", err
	}
	digest, err := stepimage.Build(ctx, dir)
	if err != nil {
		return "", err
	}
	if err := localcluster(ctx, nil, "load", "--as=bench/step:1", dir); err != nil {
		return "", err
	}
	image = "10.223.0.2:5000/bench/step@" + digest.String()
	if err := kubectl(ctx, "", "create", "namespace", "bench"); err != nil {
		return "", err
	}
	return image, kubectl(ctx, fmt.Sprintf(pipelineYAML, image), "apply", "-f", "-")
}

// pipelineRun times a PipelineRun, and a pod with the same step. The name must be new: a run with
// an old name would find the TaskRun of the old run.
func pipelineRun(ctx context.Context, image, name string) (run, pod time.Duration, err error) {
	var elapsed []time.Duration
	for _, object := range []struct{ yaml, wait, name string }{
		{fmt.Sprintf(pipelineRunYAML, name), "--for=condition=Succeeded", "pipelinerun/" + name},
		{fmt.Sprintf(podYAML, name, image), "--for=jsonpath={.status.phase}=Succeeded", "pod/" + name},
	} {
		if err := timed(&elapsed, func() error {
			if err := kubectl(ctx, object.yaml, "create", "-f", "-"); err != nil {
				return err
			}
			return kubectl(ctx, "", "wait", "-n", "bench", "--timeout=2m", object.wait, object.name)
		}); err != nil {
			return 0, 0, err
		}
		if err := kubectl(ctx, "", "delete", "-n", "bench", object.name); err != nil {
			return 0, 0, err
		}
	}
	return elapsed[0], elapsed[1], nil
}

func kubectl(ctx context.Context, stdin string, args ...string) error {
	cmd := exec.CommandContext(ctx, stateDir+"/bin/kubectl", append([]string{"--kubeconfig=" + stateDir + "/kubeconfig"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

func report(what string, times []time.Duration, aim time.Duration) {
	line := fmt.Sprintf("  %-30s %6.1f s", what, median(times).Seconds())
	if len(times) > 1 {
		line += fmt.Sprintf("   %.1f to %.1f", slices.Min(times).Seconds(), slices.Max(times).Seconds())
	}
	if aim > 0 {
		line += fmt.Sprintf("   %.2f of the aim of %s", median(times).Seconds()/aim.Seconds(), aim)
	}
	fmt.Println(line)
}
