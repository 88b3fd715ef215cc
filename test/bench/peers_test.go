//go:build e2e

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// peerTimes has seconds of one project, one value per run: from its start to the first rank and to the first step, from the last
// rank's end until the project knows it, and from the deletion until the pods are gone.
type peerTimes struct{ first, step, known, gone []float64 }

// failurePatience is how long a project may take to say that a rank failed.
const failurePatience = time.Minute

// BenchmarkPeers trains with Kubeflow Trainer and with the steps in turns: the same script, image, launcher and nodes.
func BenchmarkPeers(b *testing.B) {
	ctx, ns := b.Context(), installed(b)
	_, err := ns.kubectl(ctx, "create", "configmap", "train", "--from-file=test/bench/testdata/train.py")
	check(b, err)
	var ours, trainer peerTimes
	check(b, ns.timeTrainer(ctx, "warm", &peerTimes{})) // the runtime's image reaches the nodes
	for i := 0; b.Loop(); i++ {
		name := strconv.Itoa(i)
		check(b, ns.timeOurs(ctx, "ours-"+name, &ours))
		check(b, ns.timeTrainer(ctx, "trainer-"+name, &trainer))
	}
	named, says, err := ns.failOurs(ctx, "ours-fails")
	check(b, err)
	status, err := ns.failTrainer(ctx, "trainer-fails")
	check(b, err)
	printTitle("beside Kubeflow Trainer v2.1.0, by turns: a training of one step on 2 nodes x 1 rank",
		"the same script, image, launcher torchrun and nodes; ours by provision, sync-repo and train on this machine, without a pipeline; Trainer's from kubectl apply, with the script in a ConfigMap",
		"images are on the nodes, claims of ours are new")
	for _, line := range []struct {
		what           string
		ours, trainers []float64
	}{
		{"from the start to the first rank", ours.first, trainer.first},
		{"  to the first training step", ours.step, trainer.step},
		{"from the last rank's end to a known status", ours.known, trainer.known},
		{"from the deletion until the GPUs are free", ours.gone, trainer.gone},
	} {
		printLine(line.what, "s", line.ours)
		printLine("    Kubeflow Trainer", "s", line.trainers, times(line.trainers, line.ours, 0, "ours"))
	}
	printLine("from the end of rank 1, which fails, to its name", "s", []float64{named}, says)
	fmt.Println("    Kubeflow Trainer:", status)
}

// timeOurs trains in a new environment with the steps' programs.
func (ns *namespace) timeOurs(ctx context.Context, name string, t *peerTimes) error {
	began := time.Now()
	if err := errors.Join(ns.provision(ctx, name, "rwx"), ns.sync(ctx, name)); err != nil {
		return err
	}
	set, err := ns.agents(ctx, []node{{name, 0}, {name, 1}})
	if err != nil {
		return err
	}
	defer set.Close()
	job, err := ns.train(ctx, set, name, agent.Torchrun)
	if err != nil {
		return err
	}
	t.first, t.step = append(t.first, job.first.Sub(began).Seconds()), append(t.step, job.step.Sub(began).Seconds())
	t.known = append(t.known, job.verdict.Sub(job.ended).Seconds())
	deleted := time.Now()
	err = ns.teardown(ctx, name)
	t.gone = append(t.gone, since(deleted))
	return err
}

// failOurs is how long train takes to name the rank that fails, from its end, and what it says.
func (ns *namespace) failOurs(ctx context.Context, name string) (seconds float64, says string, err error) {
	if err := errors.Join(ns.provision(ctx, name, "rwx"), ns.sync(ctx, name)); err != nil {
		return 0, "", err
	}
	set, err := ns.agents(ctx, []node{{name, 0}, {name, 1}})
	if err != nil {
		return 0, "", err
	}
	defer set.Close()
	_, failure := ns.step(ctx, "train", "--name="+name, "--script=train.py", "--ranks-per-node=1", "--launcher=torchrun", "--", "--fail")
	verdict := time.Now()
	if failure == nil || !strings.Contains(failure.Error(), "rank 1 on node 1 exited with 1") {
		return 0, "", fmt.Errorf("train does not name rank 1: %w", failure)
	}
	job, err := set[1].Job(ctx, jobName.FindString(failure.Error()))
	if err != nil {
		return 0, "", err
	}
	return verdict.Sub(job.Ranks[0].Ended).Seconds(), "rank 1 on node 1 exited with 1", ns.teardown(ctx, name)
}

// startTrainer applies a TrainJob with its runtime.
func (ns *namespace) startTrainer(ctx context.Context, name, arguments string) (began time.Time, err error) {
	content, err := os.ReadFile("test/bench/testdata/trainer.yaml")
	if err != nil {
		return began, err
	}
	text := strings.NewReplacer("IMAGE", trainingImage, "ARGUMENTS", arguments).Replace(string(content)) + `
---
{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, metadata: {name: ` + name + `},
 spec: {runtimeRef: {apiGroup: trainer.kubeflow.org, kind: TrainingRuntime, name: torch}, trainer: {numNodes: 2, numProcPerNode: 1}}}
`
	file := filepath.Join(ns.work, name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return began, err
	}
	began = time.Now()
	_, err = ns.kubectl(ctx, "apply", "--filename="+file)
	return began, err
}

// timeTrainer trains with a TrainJob.
func (ns *namespace) timeTrainer(ctx context.Context, name string, t *peerTimes) error {
	began, err := ns.startTrainer(ctx, name, "")
	if err != nil {
		return err
	}
	if _, err := ns.kubectl(ctx, "wait", "trainjob/"+name, "--for=condition=Complete", "--timeout=3m"); err != nil {
		return err
	}
	known := time.Now()
	logs, err := ns.kubectl(ctx, "logs", "--selector=bench=trainer", "--tail=-1")
	if err != nil {
		return err
	}
	var first, step, ended float64
	for line := range strings.Lines(logs) {
		var said struct{ Time, Began, Ended float64 }
		if json.Unmarshal([]byte(line), &said) != nil {
			continue
		}
		if said.Began > 0 && (first == 0 || said.Began < first) {
			first = said.Began
		}
		step, ended = max(step, said.Time), max(ended, said.Ended)
	}
	if first == 0 || step == 0 || ended == 0 {
		return fmt.Errorf("trainjob %s printed no times:\n%s", name, logs)
	}
	at := func(unix float64) time.Time { return time.Unix(0, int64(unix*1e9)) }
	t.first, t.step = append(t.first, at(first).Sub(began).Seconds()), append(t.step, at(step).Sub(began).Seconds())
	t.known = append(t.known, known.Sub(at(ended)).Seconds())
	gone, err := ns.deleteTrainer(ctx, name)
	t.gone = append(t.gone, gone)
	return err
}

// failTrainer is what a TrainJob says of a rank that fails.
func (ns *namespace) failTrainer(ctx context.Context, name string) (string, error) {
	if _, err := ns.startTrainer(ctx, name, "--fail"); err != nil {
		return "", err
	}
	status := fmt.Sprintf("it does not say within %s that the training failed", failurePatience)
	if _, err := ns.kubectl(ctx, "wait", "trainjob/"+name, "--for=condition=Failed", "--timeout="+failurePatience.String()); err == nil {
		message, err := ns.kubectl(ctx, "get", "trainjob", name, `--output=jsonpath={.status.conditions[?(@.type=="Failed")].message}`)
		if err != nil {
			return "", err
		}
		status = "it says: " + message
	}
	_, err := ns.deleteTrainer(ctx, name)
	return status, err
}

func (ns *namespace) deleteTrainer(ctx context.Context, name string) (gone float64, err error) {
	began := time.Now()
	if _, err := ns.kubectl(ctx, "delete", "trainjob", name); err != nil {
		return 0, err
	}
	_, err = ns.kubectl(ctx, "wait", "pods", "--selector=bench=trainer", "--for=delete", "--timeout=2m")
	return since(began), err
}
