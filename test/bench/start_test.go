// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
)

// training has the times of the events of one training.
type training struct {
	// began is the start of the step train, first the start of the first rank, ended the end of the last rank, step the
	// end of the first training step, and verdict the end of the step train.
	began, first, step, ended, verdict time.Time
}

// ways are the launchers of the repeated trainings.
var ways = []struct {
	launcher agent.Launcher
	args     []string
}{
	{agent.Command, nil},
	{agent.Torchrun, nil},
	{agent.DeepSpeed, []string{"--", "--deepspeed"}},
	{agent.TorchrunLauncher, nil},
}

// startTimes has seconds, one value per run.
type startTimes struct {
	ready, synced, first, step, verdict, teardown []float64
	again                                         map[agent.Launcher]*struct{ first, step, verdict []float64 }
	// agent is the time of a launch by the agents alone, without the step.
	agent []float64
}

// BenchmarkStart creates an environment, trains in it, and trains in it again, with the steps' own programs on this
// machine, as a user does.
func BenchmarkStart(b *testing.B) {
	ns := installed(b)
	t := startTimes{again: map[agent.Launcher]*struct{ first, step, verdict []float64 }{}}
	for _, way := range ways {
		t.again[way.launcher] = &struct{ first, step, verdict []float64 }{}
	}
	for i := 0; b.Loop(); i++ {
		// Each run has a new name, and so new claims. It cannot profit from the previous run.
		check(b, ns.timeStart(b.Context(), "start-"+strconv.Itoa(i), &t))
	}
	t.report(b)
}

func (t startTimes) report(b *testing.B) {
	table := newTable("start, of a training of one step on 2 nodes x 1 rank",
		"provision, sync-repo and train run in turn on this machine, as a user runs them, and reach the nodes through the API server",
		"images are on the nodes, claims are new; train.py imports PyTorch and steps once over gloo, with DeepSpeed where that is its launcher")
	table.add("from provision's start to a ready environment", "s", t.ready)
	table.add("… to the repository on the nodes", "s", t.synced)
	table.add("… to the first rank", "s", t.first)
	table.add("… to the first training step", "s", t.step)
	table.add("from the last rank's end to train's verdict", "s", t.verdict, less(t.verdict, 1, "the aim of 1 s"))
	table.add("teardown, until all pods are gone", "s", t.teardown)
	for _, way := range ways {
		again := t.again[way.launcher]
		compared := less(again.first, 0.3, "the aim of 0.3 s")
		if way.launcher == agent.TorchrunLauncher {
			compared = "imports PyTorch before it starts ranks"
		}
		table.add(fmt.Sprintf("again, launcher %s: from train's start to the first rank", way.launcher), "s", again.first, compared)
		table.add("… to the first training step", "s", again.step)
		table.add("… from the last rank's end to train's verdict", "s", again.verdict, less(again.verdict, 1, "the aim of 1 s"))
	}
	table.add("again, by the agents alone: to the first rank", "s", t.agent, less(t.agent, 0.3, "the aim of 0.3 s"))
	table.print(b, "start")
}

// timeStart times one environment, from its creation to its deletion.
func (ns *namespace) timeStart(ctx context.Context, name string, t *startTimes) error {
	began := time.Now()
	if err := ns.provision(ctx, name, "rwx"); err != nil {
		return err
	}
	ready := since(began)
	if err := ns.sync(ctx, name); err != nil {
		return err
	}
	synced := since(began)
	set, err := ns.agents(ctx, []node{{name, 0}, {name, 1}})
	if err != nil {
		return err
	}
	defer set.Close()
	cold, err := ns.train(ctx, set, name, agent.Command)
	if err != nil {
		return err
	}
	t.ready, t.synced = append(t.ready, ready), append(t.synced, synced)
	t.first = append(t.first, cold.first.Sub(began).Seconds())
	t.step = append(t.step, cold.step.Sub(began).Seconds())
	t.verdict = append(t.verdict, cold.verdict.Sub(cold.ended).Seconds())
	for _, way := range ways {
		warm, err := ns.train(ctx, set, name, way.launcher, way.args...)
		if err != nil {
			return err
		}
		again := t.again[way.launcher]
		again.first = append(again.first, warm.first.Sub(warm.began).Seconds())
		again.step = append(again.step, warm.step.Sub(warm.began).Seconds())
		again.verdict = append(again.verdict, warm.verdict.Sub(warm.ended).Seconds())
	}
	if err := timeAgents(ctx, set, t); err != nil {
		return err
	}
	began = time.Now()
	if err := ns.teardown(ctx, name); err != nil {
		return err
	}
	t.teardown = append(t.teardown, since(began))
	return nil
}

// timeAgents times a launch without the step around it.
func timeAgents(ctx context.Context, set nodes.Set, t *startTimes) error {
	id := newJob()
	spec := agent.JobSpec{Run: "bench", Launcher: agent.Command, Nodes: len(set), RanksPerNode: 1, Script: "true"}
	began := time.Now()
	if err := set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		_, err := client.StartJob(ctx, id, spec)
		return err
	}); err != nil {
		return err
	}
	job, err := momentsOf(ctx, set, id)
	if err != nil {
		return err
	}
	t.agent = append(t.agent, job.first.Sub(began).Seconds())
	return nil
}

// jobName matches the name that train gives to a user's job.
var jobName = regexp.MustCompile(`by-hand-[a-z0-9]+`)

// train runs the step train and reads the times of the events from the job's record.
func (ns *namespace) train(ctx context.Context, set nodes.Set, name string, launcher agent.Launcher, args ...string) (training, error) {
	began := time.Now()
	out, err := ns.step(ctx, "train",
		append([]string{"--name=" + name, "--script=train.py", "--ranks-per-node=1", "--launcher=" + string(launcher)}, args...)...)
	if err != nil {
		return training{}, err
	}
	verdict := time.Now()
	id := jobName.FindString(out)
	if id == "" {
		return training{}, fmt.Errorf("train printed no job id:\n%s", out)
	}
	job, err := momentsOf(ctx, set, id)
	if err != nil {
		return job, err
	}
	job.began, job.verdict = began, verdict
	job.step, err = firstStep(ctx, set[0], id)
	return job, err
}

// momentsOf reads when the first rank started and the last one ended. It waits until the job ends.
func momentsOf(ctx context.Context, set nodes.Set, id string) (training, error) {
	var t training
	for _, client := range set {
		job, err := waitJob(ctx, client, id)
		if err != nil {
			return t, err
		}
		for _, rank := range job.Ranks {
			if t.first.IsZero() || rank.Started.Before(t.first) {
				t.first = rank.Started
			}
			if rank.Ended.After(t.ended) {
				t.ended = rank.Ended
			}
		}
	}
	return t, nil
}

// firstStep reads the time in the first line of the metrics.
func firstStep(ctx context.Context, client *agent.Client, id string) (time.Time, error) {
	log, err := client.Log(ctx, id, agent.MetricsLog, 0, false)
	if err != nil {
		return time.Time{}, err
	}
	defer log.Close()
	line, err := bufio.NewReader(log).ReadBytes('\n')
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the metrics of job %s: %w", id, err)
	}
	return stepTime(line)
}

// stepTime returns when the step in the metrics was done.
func stepTime(metrics []byte) (time.Time, error) {
	var step struct {
		Time float64 `json:"time"`
	}
	if err := json.Unmarshal(metrics, &step); err != nil {
		return time.Time{}, fmt.Errorf("reading metrics %q: %w", metrics, err)
	}
	if step.Time == 0 {
		return time.Time{}, errors.New("the metrics have no time")
	}
	return time.Unix(0, int64(step.Time*1e9)), nil
}
