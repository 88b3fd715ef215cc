// SPDX-License-Identifier: Apache-2.0

// Package live shows what the nodes of an environment do now: mlenv top on a terminal, and mlenv ui in a browser.
package live

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
)

// State shows an environment at one moment.
type State struct {
	// Environment is the name of the environment, or of the local run.
	Environment string `json:"environment"`
	// Jobs are the jobs in progress.
	Jobs []Job `json:"jobs"`
	// Nodes are all nodes of the environment.
	Nodes []Node `json:"nodes"`
}

// Job is a job in progress. Numbers that its metrics do not have are 0.
type Job struct {
	// ID is the name of the job at the agents.
	ID string `json:"id"`
	// Run is the name of the run.
	Run string `json:"run"`
	// Step is how many optimiser steps are done.
	Step float64 `json:"step,omitempty"`
	// Steps is the total number of steps.
	Steps float64 `json:"steps,omitempty"`
	// Source is the framework that counts the steps of a training which does not measure itself.
	Source string `json:"source,omitempty"`
	// Loss is the last loss: a number, or a word such as NaN.
	Loss any `json:"loss,omitempty"`
	// StepsPerSecond is how many steps are done in a second.
	StepsPerSecond float64 `json:"stepsPerSecond,omitempty"`
	// PerSecond is how many tokens or samples are processed in a second.
	PerSecond float64 `json:"perSecond,omitempty"`
	// Rate is what `perSecond` counts: tokens or samples.
	Rate string `json:"rate,omitempty"`
	// SecondsLeft is an estimate of the time left.
	SecondsLeft float64 `json:"secondsLeft,omitempty"`
	// Fabric is the verdict of check-fabric. It is left out if the network was not measured.
	Fabric string `json:"fabric,omitempty"`
	// Ranks are all ranks of the job.
	Ranks []Rank `json:"ranks,omitempty"`
	// Dropped explains which metrics are not kept, "" for none.
	Dropped string `json:"-"`
	// Curve is nil without metrics.
	Curve *metrics.Curve `json:"-"`
}

// Rank is one training process.
type Rank struct {
	// Rank is the number of the rank.
	Rank int `json:"rank"`
	// Node is the number of its node.
	Node int `json:"node"`
	// State is "running", "exited with" and a code, or the signal that ended it.
	State string `json:"state"`
}

// Node is one node of the environment.
type Node struct {
	// Node is the number of the node, from 0.
	Node int `json:"node"`
	// KubernetesNode is the name of the Kubernetes node that its pod is on.
	KubernetesNode string `json:"kubernetesNode,omitempty"`
	// GPUs are the GPUs that the pod has.
	GPUs []agent.GPU `json:"gpus,omitempty"`
	// MemoryLimit is the most memory in bytes that the pod may use. It is left out without a limit.
	MemoryLimit agent.Bytes `json:"memoryLimit,omitempty"`
	// MemoryUsed is the used memory in bytes, without what the kernel frees first.
	MemoryUsed agent.Bytes `json:"memoryUsed,omitempty"`
	// Ranks is how many ranks of the node are running.
	Ranks int `json:"ranks"`
	// All is how many ranks the node has.
	All int `json:"all"`
	// Quiet is the time since the last output of any rank, in seconds.
	Quiet float64 `json:"quietSeconds,omitempty"`
	// OwnStep is the time of the slowest rank for its own part of the last step, in seconds.
	OwnStep float64 `json:"ownStepSeconds,omitempty"`
	// Problem is why the node did not answer, or why its GPUs cannot be read.
	Problem string `json:"problem,omitempty"`
}

type source struct {
	// environment is its name, or a local run's.
	environment string
	nodes       nodes.Set
	// connect connects to the nodes again, or returns why the environment is gone.
	connect func(context.Context) (nodes.Set, error)
	jobs    map[string]*training
}

type training struct {
	fabric  string
	read    int64
	lines   *lines.Splitter
	history metrics.History
	last    metrics.Last
	dropped string
}

func openSource(cmd *cobra.Command, flags *envflags.Flags) (*source, error) {
	s := &source{jobs: map[string]*training{}}
	if r, ok := flags.LocalRun(); ok {
		s.environment, s.connect = r.Name, func(context.Context) (nodes.Set, error) { return r.Connect() }
	} else {
		clients, err := flags.Connect(cmd.Context(), command.TextLog(cmd.ErrOrStderr()))
		if err != nil {
			return nil, err
		}
		e := env.Of(clients, flags.Environment)
		s.environment, s.connect = e.Name, func(ctx context.Context) (nodes.Set, error) { return e.Nodes(ctx, "") }
	}
	var err error
	s.nodes, err = s.connect(cmd.Context())
	return s, err
}

// askNodes bounds the questions to the nodes.
const askNodes = 10 * time.Second

// askNodes returns the state of all nodes. A node that does not answer has its problem in its row. If none answers, askNodes returns the
// error of the first node.
func (s *source) askNodes(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, askNodes)
	defer cancel()
	report := State{Environment: s.environment, Jobs: []Job{}, Nodes: make([]Node, len(s.nodes))}
	statuses, errs := make([][]agent.JobStatus, len(s.nodes)), make([]error, len(s.nodes))
	var group sync.WaitGroup
	for i, client := range s.nodes {
		group.Go(func() { report.Nodes[i], statuses[i], errs[i] = askNode(ctx, client) })
	}
	group.Wait()
	if !slices.Contains(errs, nil) {
		return report, errs[0]
	}
	for node := range statuses {
		for _, status := range statuses[node] {
			if !slices.ContainsFunc(report.Jobs, func(j Job) bool { return j.ID == status.ID }) {
				report.Jobs = append(report.Jobs, s.job(ctx, status))
			}
			job := slices.IndexFunc(report.Jobs, func(j Job) bool { return j.ID == status.ID })
			report.Jobs[job].Ranks = append(report.Jobs[job].Ranks, ranksOf(status)...)
			// Node 0 has the times of all ranks.
			for other := range report.Nodes {
				for _, rank := range status.Spec.Ranks(other) {
					if rank >= 0 && rank < len(status.RankSeconds) { // nodes that are not of the job have none
						report.Nodes[other].OwnStep = max(report.Nodes[other].OwnStep, status.RankSeconds[rank])
					}
				}
			}
		}
	}
	return report, nil
}

// current is ask for a source that is asked for a long time: if no node answers, the error is the reason why the environment
// is gone, or nil if it exists.
func (s *source) current(ctx context.Context) (State, error) {
	state, err := s.askNodes(ctx)
	if err == nil || ctx.Err() != nil {
		return state, ctx.Err()
	}
	set, gone := s.connect(ctx)
	set.Close()
	return state, gone
}

func ranksOf(status agent.JobStatus) (ranks []Rank) {
	for _, rank := range status.Ranks {
		state := "running"
		if !rank.Ended.IsZero() {
			state = cmp.Or(rank.Exit.Signal, fmt.Sprintf("exited with %d", rank.Exit.Code))
		}
		ranks = append(ranks, Rank{Rank: rank.Rank, Node: rank.Node, State: state})
	}
	return ranks
}

func askNode(ctx context.Context, client *agent.Client) (n Node, running []agent.JobStatus, err error) {
	n.Node = client.Node()
	facts, err := client.Facts(ctx)
	if err != nil {
		n.Problem = err.Error()
		return n, nil, err
	}
	n.KubernetesNode, n.GPUs, n.Problem = facts.KubernetesNode, facts.GPUs, facts.GPUProblem
	n.MemoryLimit, n.MemoryUsed = facts.MemoryLimit, facts.MemoryUsed-facts.MemoryCache
	for _, id := range facts.Running {
		status, err := client.Job(ctx, id)
		if err != nil {
			continue // it has ended meanwhile
		}
		running = append(running, status)
		n.All += len(status.Ranks)
		for _, rank := range status.Ranks {
			if rank.Ended.IsZero() {
				n.Ranks++
			}
		}
		n.Quiet = status.Quiet.Seconds()
	}
	return n, running, nil
}

// job reads the metrics that the job has written since the last time.
func (s *source) job(ctx context.Context, status agent.JobStatus) Job {
	m := s.jobs[status.Record] // each attempt has metrics of its own
	if m == nil {
		m = &training{}
		m.lines = metrics.Lines(func(line map[string]any) {
			m.history.Add(line)
			m.dropped = cmp.Or(m.dropped, m.last.Add(line))
		})
		var measured fabric.Report
		if content, err := s.nodes[0].ReadRecord(ctx, status.ID, agent.FabricReport); err == nil && json.Unmarshal(content, &measured) == nil {
			m.fabric = measured.Summary()
		}
		s.jobs[status.Record] = m
	}
	if log, err := s.nodes[0].Log(ctx, status.ID, agent.MetricsLog, m.read, false); err == nil {
		n, _ := io.Copy(m.lines, log) // the rest comes the next time
		m.read += n
		_ = log.Close()
	}
	job := Job{ID: status.ID, Run: status.Spec.Run, Fabric: m.fabric, Dropped: m.dropped}
	curve := m.history.Curve()
	if curve == nil {
		return job
	}
	job.Curve = curve
	last := curve.Points[len(curve.Points)-1]
	job.Step, job.Rate, job.PerSecond = last.Step, curve.Rate, last.PerSecond
	job.Steps, _ = metrics.Number(m.last.Values(), "steps")
	job.Loss = m.last.Values()["loss"]
	job.Source, _ = m.last.Values()["source"].(string)
	if last.StepTime > 0 {
		job.StepsPerSecond = 1 / last.StepTime.Seconds()
		job.SecondsLeft = max(0, job.Steps-job.Step) * last.StepTime.Seconds()
	}
	return job
}
