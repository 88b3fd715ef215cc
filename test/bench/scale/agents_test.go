// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// countVariable names the environment variable with the number of agents that TestAgents runs.
const countVariable = "MLENV_BENCH_AGENTS"

// passTime is added to each transfer between agents, as on a network: the time of a wave of transfers.
const passTime = time.Second

// failFile names the ranks' environment variable with the path of a file. When the file has the number of the attempt, the last rank
// fails. If the variable breakGPU is set, a GPU of its node has a fault from then on.
const (
	failFile = "FAIL_FILE"
	breakGPU = "BREAK_GPU"
)

// environment describes the agents to the step.
type environment struct {
	Addresses    []string
	Certificates objects.Certificates
}

// startAgents starts count agents in one other process, so that the measured memory and time of the steps do not
// include theirs. end ends them.
func startAgents(b *testing.B, count int) (e environment, end func()) {
	b.Helper()
	agents := exec.CommandContext(context.Background(), os.Args[0], "-test.run=^TestAgents$", "-test.timeout=0")
	agents.Env = append(os.Environ(), fmt.Sprint(countVariable, "=", count))
	agents.Stderr = os.Stderr
	input, err := agents.StdinPipe()
	check(b, err)
	read, write, err := os.Pipe()
	check(b, err)
	defer read.Close()
	agents.ExtraFiles = []*os.File{write}
	check(b, agents.Start())
	write.Close()
	check(b, json.NewDecoder(read).Decode(&e))
	return e, func() {
		input.Close()
		if err := agents.Wait(); err != nil {
			b.Errorf("the agents ended with %v", err)
		}
	}
}

// TestAgents runs the agents of a benchmark until its standard input ends.
func TestAgents(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv(countVariable))
	if err != nil {
		t.Skip("only for the benchmark")
	}
	var e environment
	for _, node := range agenttest.Start(t, count) {
		ranks := &standIn{node: node.Config.Node, name: node.Config.Pod}
		node.Wrap(ranks.wrap)
		e.Addresses, e.Certificates = append(e.Addresses, node.Config.PodIP), node.Certificates()
	}
	if err := json.NewEncoder(os.NewFile(3, "pipe")).Encode(e); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// standIn answers for the ranks of one node, without processes: thousands of them do not fit one machine. Each rank
// prints one line and runs until its job is stopped. Jobs with launcher command reach the real agent, which starts
// their processes.
type standIn struct {
	node int
	name string

	mu sync.Mutex
	// broken reports whether a GPU has a fault.
	broken bool
	// status is the job's, nil before its start.
	status *agent.JobStatus
	// change closes changed at the next change of status.
	changed chan struct{}
}

func (s *standIn) wrap(inner http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", inner)
	mux.HandleFunc("POST /v1/trees/{hash}/contents", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(passTime)
		inner.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /v1/facts", func(w http.ResponseWriter, r *http.Request) { s.facts(w, r, inner) })
	mux.HandleFunc("PUT /v1/jobs/{id}", func(w http.ResponseWriter, r *http.Request) { s.start(w, r, inner) })
	for pattern, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/jobs/{id}": s.job, "GET /v1/jobs/{id}/watch": s.watch, "POST /v1/jobs/{id}/stop": s.stop, "GET /v1/jobs/{id}/logs/{name}": s.log,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if status, _ := s.now(); status == nil || status.ID != r.PathValue("id") {
				inner.ServeHTTP(w, r)
				return
			}
			answer(w, r)
		})
	}
	return mux
}

// facts returns the agent's facts, and adds GPUs, which the machine does not have.
func (s *standIn) facts(w http.ResponseWriter, r *http.Request, inner http.Handler) {
	answer := &recorder{ResponseWriter: w}
	inner.ServeHTTP(answer, r)
	var facts agent.Facts
	if err := json.Unmarshal([]byte(answer.body.String()), &facts); err != nil {
		panic(err)
	}
	for i := range ranksPerNode {
		facts.GPUs = append(facts.GPUs, agent.GPU{Index: i, UUID: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012x", s.node*ranksPerNode+i),
			Model: "NVIDIA H100 80GB HBM3", Driver: "570.124.06"})
	}
	facts.GPUsExpected = ranksPerNode
	s.mu.Lock()
	if s.broken {
		facts.GPUs[ranksPerNode-1].Fault = "it has fallen off the bus"
	}
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(facts)
}

// recorder keeps the body of a response.
type recorder struct {
	http.ResponseWriter
	body strings.Builder
}

func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// now returns the job's status, and a channel that is closed when the status changes.
func (s *standIn) now() (*agent.JobStatus, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.changed
}

// change replaces the status by a changed copy.
func (s *standIn) change(change func(*agent.JobStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.status
	next.Ranks = append([]agent.RankStatus(nil), next.Ranks...)
	change(&next)
	close(s.changed)
	s.status, s.changed = &next, make(chan struct{})
}

func (s *standIn) start(w http.ResponseWriter, r *http.Request, inner http.Handler) {
	body, err := io.ReadAll(r.Body)
	var spec agent.JobSpec
	if err == nil {
		err = json.Unmarshal(body, &spec)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if spec.Launcher == agent.Command {
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		inner.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	now := time.Now()
	status := agent.JobStatus{ID: r.PathValue("id"), Node: s.node, Environment: "env", State: agent.Running, Spec: spec, Record: agent.Runs +
		"/" + r.PathValue("id"), Started: now, Launcher: agent.Exit{Code: -1}}
	var processes []nccl.Process
	for local, rank := range spec.Ranks(s.node) {
		status.Ranks = append(status.Ranks, agent.RankStatus{Rank: rank, LocalRank: local, Node: s.node, PID: 100 + local, Started: now,
			Exit: agent.Exit{Code: -1}})
		rail := fmt.Sprintf("mlx5_%d", local)
		processes = append(processes, nccl.Process{
			Host: s.name, PID: 100 + local, Version: "2.27.7+cuda12.9", Network: "IB",
			Devices: []nccl.Device{{Name: rail, Port: 1, Link: "RoCE", GPUDirect: nccl.Yes, MTU: 4096}},
			Communicators: []nccl.Communicator{{Rank: rank, Ranks: spec.Nodes * spec.RanksPerNode, Nodes: spec.Nodes, Ready: true,
				Routes: []nccl.Route{{Transport: nccl.RDMAGPU, Network: "IB", Rail: rail, Channels: 16}}}},
		})
	}
	summary := nccl.Merge(nccl.Summary{Processes: processes})
	status.NCCL = &summary
	if s.changed != nil {
		close(s.changed)
	}
	s.status, s.changed = &status, make(chan struct{})
	s.mu.Unlock()
	if s.node == spec.Nodes-1 {
		go s.failLater(spec)
	}
	status.New = true
	_ = json.NewEncoder(w).Encode(status)
}

// failLater makes the last rank fail once the file has the attempt's number.
func (s *standIn) failLater(spec agent.JobSpec) {
	for {
		if attempt, err := os.ReadFile(spec.Env[failFile]); err == nil && string(attempt) == fmt.Sprint(spec.Attempt()) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.mu.Lock()
	s.broken = spec.Env[breakGPU] != ""
	s.mu.Unlock()
	s.change(func(status *agent.JobStatus) {
		rank := &status.Ranks[len(status.Ranks)-1]
		rank.Ended, rank.Exit, rank.Tail = time.Now(), agent.Exit{Code: 1}, []string{"Traceback (most recent call last):",
			`  File "train.py", line 9, in step`, "ZeroDivisionError: division by zero"}
		rank.Python = &agent.PythonError{Seen: rank.Ended, Type: "ZeroDivisionError", Message: "division by zero", File: "train.py", Line: 9,
			Traceback: rank.Tail}
	})
}

func (s *standIn) job(w http.ResponseWriter, _ *http.Request) {
	status, _ := s.now()
	_ = json.NewEncoder(w).Encode(status)
}

func (s *standIn) watch(w http.ResponseWriter, r *http.Request) {
	for {
		status, changed := s.now()
		_ = json.NewEncoder(w).Encode(status)
		_ = http.NewResponseController(w).Flush()
		if status.State != agent.Running {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (s *standIn) stop(w http.ResponseWriter, r *http.Request) {
	var stop agent.Stop
	if err := json.NewDecoder(r.Body).Decode(&stop); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.change(func(status *agent.JobStatus) {
		now := time.Now()
		for i := range status.Ranks {
			if rank := &status.Ranks[i]; rank.Ended.IsZero() {
				rank.Ended, rank.Exit, rank.Stopped = now, agent.Exit{Code: -1, Signal: "SIGTERM"}, true
			}
		}
		status.State, status.Stopping, status.Ended, status.StopCause, status.StopReason = agent.Stopped, now, now, stop.Cause, stop.Reason
	})
}

func (s *standIn) log(w http.ResponseWriter, r *http.Request) {
	if rank, found := strings.CutPrefix(r.PathValue("name"), agent.RankLog); found && r.FormValue("offset") == "0" {
		fmt.Fprintf(w, "rank %s has started\n", rank)
	}
	_ = http.NewResponseController(w).Flush()
	for r.FormValue("follow") == "true" {
		status, changed := s.now()
		if status.State != agent.Running {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
