// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

// project is a project that trains on the cluster: ml-dev-env, or a peer.
type project struct {
	name string
	// train trains with train.py. With fail, rank 1 fails, and trained has the project's report of the failure.
	train func(ctx context.Context, name string, fail bool) (trained, error)
	// remove deletes the training and waits until its pods are gone.
	remove func(ctx context.Context, name string) error

	// Seconds, one value per run: from the start to the first rank and to the first step, from the last rank's end and from the end
	// of the rank that fails until the project knows it, and from the deletion until the pods are gone.
	first, step, known, failed, gone []float64
	reported                         string
}

// trained is one training. Its output contains the output of train.py.
type trained struct {
	began, known     time.Time
	output, reported string
	failed           bool
}

// rankTimes has the times that train.py prints, in seconds since 1970.
type rankTimes struct {
	Rank               int
	Began, Step, Ended float64
}

var printedTimes = regexp.MustCompile(`\{"rank": .*?\}`)

// times returns the times of the ranks, by their numbers. After a failure of rank 1, rank 0's times may be missing
// together with its pod.
func (t trained) times() (ranks [2]rankTimes, err error) {
	found := printedTimes.FindAllString(t.output, -1)
	for _, text := range found {
		var times rankTimes
		if err := json.Unmarshal([]byte(text), &times); err != nil {
			return ranks, fmt.Errorf("reading the times of a rank: %w", err)
		}
		ranks[times.Rank%2] = times
	}
	if ranks[1].Ended == 0 || ranks[0].Ended == 0 && !t.failed {
		return ranks, fmt.Errorf("train.py printed the times %q; want those of both ranks in\n%s", found, t.output)
	}
	return ranks, nil
}

// run trains once to the end and once with a rank that fails. Peers' trainings never use the same names, because the Services of a
// deleted training may exist longer than its pods.
func (p *project) run(ctx context.Context, number string) error {
	name := strings.ToLower(strings.Fields(p.name)[0]) + "-" + number
	for _, fail := range []bool{false, true} {
		if fail {
			name += "-fails"
		}
		t, err := p.train(ctx, name, fail)
		t.failed = fail
		if err != nil {
			return fmt.Errorf("training with %s: %w", p.name, err)
		}
		ranks, err := t.times()
		if err != nil {
			return err
		}
		began, known := float64(t.began.UnixNano())/1e9, float64(t.known.UnixNano())/1e9
		deleted := time.Now()
		if err := p.remove(ctx, name); err != nil {
			return err
		}
		if fail {
			p.failed, p.reported = append(p.failed, known-ranks[1].Ended), t.reported
			continue
		}
		p.gone = append(p.gone, since(deleted))
		p.first = append(p.first, min(ranks[0].Began, ranks[1].Began)-began)
		p.step = append(p.step, max(ranks[0].Step, ranks[1].Step)-began)
		p.known = append(p.known, known-max(ranks[0].Ended, ranks[1].Ended))
	}
	return nil
}

// withPeers is installed on a cluster that has the peers.
func withPeers(b *testing.B) *namespace {
	b.Helper()
	ns := installed(b)
	if !strings.HasPrefix(ns.training, peersImage) {
		b.Fatal("the local cluster has no peers; add them first: bin/localcluster up --peers")
	}
	return ns
}

// BenchmarkPeers trains with the steps, Kubeflow Trainer and MPI Operator in turns: the same script, image and nodes.
func BenchmarkPeers(b *testing.B) {
	ctx, ns := b.Context(), withPeers(b)
	_, err := ns.kubectl(ctx, "create", "configmap", "train", "--from-file=test/bench/testdata/train.py")
	check(b, err)
	projects := []*project{
		{name: "ml-dev-env", train: ns.trainOurs, remove: func(ctx context.Context, _ string) error { return ns.teardown(ctx, ours) }},
		ns.peer("Kubeflow Trainer", "trainer.yaml", "trainjob", "Complete", ""),
		ns.peer("MPI Operator", "mpi.yaml", "mpijob", "Succeeded", ",training.kubeflow.org/job-role=launcher"),
	}
	for _, p := range projects {
		warm := *p // the first run is not counted
		check(b, warm.run(ctx, "warm"))
	}
	for i := 0; b.Loop(); i++ {
		for turn := range projects {
			check(b, projects[(i+turn)%len(projects)].run(ctx, strconv.Itoa(i)))
		}
	}
	rows := [][]string{{"seconds, " + report.When()}, {"from the start to the first rank"}, {"from the start to the first training step"},
		{"from the last rank's end until the status is known"},
		{"from the deletion until the GPUs are free"}, {"from the end of a rank that fails until the failure is known"},
		{"what is reported then"}}
	base := projects[0]
	for _, p := range projects {
		for i, cell := range []string{p.name, compared(p.first, base.first), compared(p.step, base.step), compared(p.known, base.known),
			compared(p.gone, base.gone), compared(p.failed, base.failed), p.reported} {
			rows[i] = append(rows[i], cell)
		}
	}
	printTable(b, "peers", rows)
}

// ours is the name of each new environment, so that only the first one waits for claims. Peers use none.
const ours = "ours"

// trainOurs trains in a new environment with the steps' programs.
func (ns *namespace) trainOurs(ctx context.Context, _ string, fail bool) (t trained, err error) {
	t.began = time.Now()
	if err := errors.Join(ns.provision(ctx, ours, "rwx"), ns.sync(ctx, ours)); err != nil {
		return t, err
	}
	args := []string{"--name=" + ours, "--script=train.py", "--ranks-per-node=1", "--launcher=torchrun"}
	if !fail {
		t.output, err = ns.step(ctx, "train", args...)
		t.known = time.Now()
		return t, err
	}
	_, failure := ns.step(ctx, "train", append(args, "--", "--fail")...)
	t.known = time.Now()
	const named = "rank 1 on node 1 exited with 1"
	if failure == nil || !strings.Contains(failure.Error(), named) {
		return t, fmt.Errorf("train does not name rank 1: %w", failure)
	}
	t.output, t.reported = failure.Error(), named
	return t, nil
}

// peer trains by applying a file of testdata, which has an object of that kind. success is the condition of a training that
// succeeded, and role selects the pods whose logs have the output of the ranks.
func (ns *namespace) peer(name, file, kind, success, role string) *project {
	const timeForATrainingToEnd, timeForItsPodsToGo = "3m", "2m"
	return &project{name: name, train: func(ctx context.Context, name string, fail bool) (t trained, err error) {
		content, err := os.ReadFile("test/bench/testdata/" + file)
		if err != nil {
			return t, err
		}
		argument, condition := "", success
		if fail {
			argument, condition = "--fail", "Failed"
		}
		path := filepath.Join(ns.work, kind+"-"+name+".yaml")
		text := strings.NewReplacer("IMAGE", ns.training, "NAME", name, "ARGUMENTS", argument).Replace(string(content))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return t, err
		}
		t.began = time.Now()
		if _, err := ns.kubectl(ctx, "apply", "--filename="+path); err != nil {
			return t, err
		}
		if _, err := ns.kubectl(ctx, "wait", kind+"/"+name, "--for=condition="+condition, "--timeout="+timeForATrainingToEnd); err != nil {
			return t, err
		}
		t.known = time.Now()
		message, err := ns.kubectl(ctx, "get", kind, name, `--output=jsonpath={.status.conditions[?(@.type=="`+condition+`")].message}`)
		if err != nil {
			return t, err
		}
		t.reported = strings.TrimSpace(message)
		t.output, err = ns.kubectl(ctx, "logs", "--selector=bench="+name+role, "--tail=-1")
		return t, err
	}, remove: func(ctx context.Context, name string) error {
		if _, err := ns.kubectl(ctx, "delete", kind, name); err != nil {
			return err
		}
		_, err := ns.kubectl(ctx, "wait", "pods", "--selector=bench="+name, "--for=delete", "--timeout="+timeForItsPodsToGo)
		return err
	}}
}
