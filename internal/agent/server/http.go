package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// maxManifest bounds a request that is not a stream.
const maxManifest = 256 << 20

// Handler answers the whole protocol. Who may ask is TLS's matter.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := f(w, r); err != nil && r.Context().Err() == nil {
				s.refuse(w, r, err)
			}
		})
	}
	handle("GET /v1/health", s.health)
	handle("GET /v1/facts", s.facts)
	handle("POST /v1/rdma", s.rdma)
	handle("PUT /v1/network", s.setNetwork)
	handle("GET /v1/workspace", s.workspace)
	handle("POST /v1/resolve", s.resolve)
	handle("GET /v1/trees/current", s.currentTree)
	handle("POST /v1/trees/{hash}", s.planTree)
	handle("PUT /v1/trees/{hash}/content", s.receiveTree)
	handle("POST /v1/trees/{hash}/switch", s.switchTree)
	handle("PUT /v1/jobs/{id}", s.startJob)
	handle("GET /v1/jobs/{id}", s.job)
	handle("GET /v1/jobs/{id}/watch", s.watchJob)
	handle("POST /v1/jobs/{id}/stop", s.stopJob)
	handle("GET /v1/jobs/{id}/logs/{name}", s.jobLog)
	handle("PUT /v1/shells/{id}", s.keepShell)
	handle("DELETE /v1/shells/{id}", s.endShell)
	handle("GET /v1/records/{id}/{name}", s.readRecord)
	handle("PUT /v1/records/{id}/{name}", s.writeRecord)
	return mux
}

func (s *Server) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, r *http.Request) { _ = s.health(w, r) })
	return mux
}

// refuse answers with the error, if the answer has not begun.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusInternalServerError
	problem := agent.Problem{Message: err.Error(), Next: fail.NextOf(err)}
	switch reason := fail.ReasonOf(err); {
	case reason != fail.Internal:
		problem.Reason, code = string(reason), http.StatusUnprocessableEntity
	case errors.Is(err, fs.ErrNotExist):
		code = http.StatusNotFound
	default:
		s.log.Warn(fmt.Sprintf("%s %s: %v", r.Method, r.URL.Path, err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(problem)
}

func answer(w http.ResponseWriter, value any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(value)
}

func read(w http.ResponseWriter, r *http.Request, value any) error {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxManifest)).Decode(value); err != nil {
		return fail.Because(fail.InvalidInput, fmt.Errorf("reading the request %s %s: %w", r.Method, r.URL.Path, err))
	}
	return nil
}

func (s *Server) currentHealth() agent.Health {
	return agent.Health{Protocol: agent.Protocol, Version: s.config.Version, Instance: s.started.instance}
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	return answer(w, s.currentHealth())
}

func (s *Server) facts(w http.ResponseWriter, r *http.Request) error {
	cgroup := os.DirFS(s.config.Paths.Sys)
	memory, cpu := facts.ReadMemory(cgroup), facts.ReadCPU(cgroup)
	f := agent.Facts{
		Health: s.currentHealth(), Started: s.started.at, Node: s.config.Node, Pod: s.config.Pod, KubernetesNode: s.config.KubernetesNode,
		GPUsExpected: s.config.GPUs, CPUs: cpus(), MemoryLimit: memory.Limit, MemoryUsed: memory.Used, MemoryCache: memory.Cache,
		CPUPeriods: cpu.Periods, CPUThrottled: cpu.Throttled, SharedMemory: facts.Space("/dev/shm"),
		Workspace: facts.Volume(s.config.Paths.Workspace), Datasets: facts.Volume(s.config.Paths.Datasets),
		MemlockLimit: memlock(), Environment: s.config.publicEnvironment(), Network: s.config.network(), Running: s.jobs.running(),
	}
	if s.services != nil {
		f.Services = s.services.Status()
	}
	var err error
	if f.GPUs, err = facts.GPUs(r.Context()); err != nil {
		f.GPUProblem = err.Error()
	}
	return answer(w, f)
}

// rdma looks each time: ports go down, and interfaces come late.
func (s *Server) rdma(w http.ResponseWriter, r *http.Request) error {
	var expected rdma.Expected
	if err := read(w, r, &expected); err != nil {
		return err
	}
	sysRoot := rdma.SysRootOf(s.config.Environ)
	return answer(w, rdma.Detect(rdma.Options{
		Root: rdma.Root(sysRoot), SysRoot: sysRoot, Environ: s.config.Environ, Interfaces: rdma.SystemInterfaces, Expected: expected,
	}))
}

func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request) error {
	var network agent.Network
	if err := read(w, r, &network); err != nil {
		return err
	}
	if err := network.Validate(); err != nil {
		return fail.Because(fail.InvalidInput, fmt.Errorf("setting the node's network: %w", err))
	}
	if err := record.WriteJSON(s.config.Paths.network(), network); err != nil {
		return fmt.Errorf("setting the node's network: %w", err)
	}
	s.networkIsSet()
	return answer(w, s.config.publicEnvironment())
}

func (s *Server) networkIsSet() { s.tellOnce.Do(func() { close(s.told) }) }

func (s *Server) workspace(w http.ResponseWriter, _ *http.Request) error {
	return answer(w, facts.Volume(s.config.Paths.Workspace))
}

// cpus are those that the container may run on.
func cpus() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0
	}
	return set.Count()
}

func memlock() agent.Bytes {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Max >= 1<<63-1 {
		return -1
	}
	return agent.Bytes(limit.Max)
}

func (s *Server) resolve(w http.ResponseWriter, r *http.Request) error {
	var names []string
	if err := read(w, r, &names); err != nil {
		return err
	}
	result := agent.Resolution{Addresses: map[string][]string{}, Problems: map[string]string{}}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, name := range names {
		group.Go(func() {
			addresses, err := net.DefaultResolver.LookupHost(r.Context(), name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				result.Problems[name] = err.Error()
				return
			}
			result.Addresses[name] = addresses
		})
	}
	group.Wait()
	return answer(w, result)
}

func hash(r *http.Request) tree.Digest { return tree.Digest(r.PathValue("hash")) }

func (s *Server) planTree(w http.ResponseWriter, r *http.Request) error {
	var manifest tree.Manifest
	if err := read(w, r, &manifest); err != nil {
		return err
	}
	present, missing, err := s.trees.Plan(manifest, hash(r))
	if err != nil {
		return err
	}
	return answer(w, agent.TreePlan{Present: present, Missing: missing})
}

func (s *Server) receiveTree(w http.ResponseWriter, r *http.Request) error {
	files, size, err := s.trees.Receive(r.Context(), hash(r), r.Body)
	if err != nil {
		return err
	}
	path, err := s.trees.Path(hash(r))
	if err != nil {
		return err
	}
	return answer(w, agent.TreeState{Hash: hash(r), Files: files, Bytes: agent.Bytes(size), Path: path})
}

func (s *Server) switchTree(w http.ResponseWriter, r *http.Request) error {
	var request agent.Switch
	if err := read(w, r, &request); err != nil {
		return err
	}
	previous, err := s.trees.Switch(hash(r), request.Venv)
	if err != nil {
		return err
	}
	// Who switches need not wait for the removal.
	s.background.Go(func() {
		// Some old trees are kept: going back to one costs nothing then.
		const keep = 5
		if _, err := s.trees.Collect(keep, s.jobs.pinned); err != nil {
			s.log.Warn(fmt.Sprintf("Old trees stay: %v", err))
		}
	})
	path, err := s.trees.Path(hash(r))
	if err != nil {
		return err
	}
	return answer(w, agent.TreeState{Hash: hash(r), Path: path, Previous: previous})
}

func (s *Server) currentTree(w http.ResponseWriter, _ *http.Request) error {
	current, _ := s.trees.Current()
	state := agent.TreeState{Hash: current}
	if current != "" {
		state.Venv = s.trees.Venv(current)
		var err error
		if state.Path, err = s.trees.Path(current); err != nil {
			return err
		}
	}
	return answer(w, state)
}

func (s *Server) startJob(w http.ResponseWriter, r *http.Request) error {
	var spec agent.JobSpec
	if err := read(w, r, &spec); err != nil {
		return err
	}
	status, made, err := s.jobs.start(r.PathValue("id"), spec)
	if err != nil {
		return err
	}
	if status.New = made; made {
		s.log.Info(fmt.Sprintf("Job %s of run %s started: %s %s", status.ID, spec.Run, spec.Launcher, spec.Script))
		w.WriteHeader(http.StatusCreated)
	}
	return answer(w, status)
}

func (s *Server) job(w http.ResponseWriter, r *http.Request) error {
	status, j, err := s.jobs.get(r.PathValue("id"))
	if err != nil {
		return notFound(r, err)
	}
	if j != nil && !j.isOver() {
		status.Quiet, status.RankSeconds = j.quiet(time.Now()), rankSeconds(j.dir.Metrics())
	}
	return answer(w, status)
}

func notFound(r *http.Request, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("finding job %s: %w", r.PathValue("id"), fs.ErrNotExist)
	}
	return err
}

func (s *Server) stopJob(w http.ResponseWriter, r *http.Request) error {
	var stop agent.Stop
	if err := read(w, r, &stop); err != nil {
		return err
	}
	status, j, err := s.jobs.get(r.PathValue("id"))
	if err != nil {
		return notFound(r, err)
	}
	if j != nil {
		s.log.Info(fmt.Sprintf("Job %s is stopped: %s", status.ID, stop.Reason))
		j.stop(stop)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// watchJob sends the status after every change of it. A log's growth is none.
func (s *Server) watchJob(w http.ResponseWriter, r *http.Request) error {
	status, j, err := s.jobs.get(r.PathValue("id"))
	if err != nil {
		return notFound(r, err)
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/jsonl")
	if j == nil {
		return json.NewEncoder(w).Encode(status)
	}
	var last []byte
	for {
		over := j.isOver()
		status, next := j.snapshot()
		line, err := json.Marshal(status)
		if err != nil {
			return err
		}
		if string(line) != string(last) {
			last = line
			if _, err := w.Write(append(line, '\n')); err != nil {
				return nil //nolint:nilerr // whoever asked is gone
			}
			if err := control.Flush(); err != nil {
				return nil //nolint:nilerr // whoever asked is gone
			}
		}
		if over {
			return nil
		}
		select {
		case <-next:
		case <-r.Context().Done():
			return nil
		}
	}
}

func (s *Server) jobLog(w http.ResponseWriter, r *http.Request) error {
	status, j, err := s.jobs.get(r.PathValue("id"))
	if err != nil {
		return notFound(r, err)
	}
	path, err := logFile(status, r.PathValue("name"))
	if err != nil {
		return err
	}
	offset, err := strconv.ParseInt(r.FormValue("offset"), 10, 64)
	if err != nil || offset < 0 {
		return fail.Becausef(fail.InvalidInput, "reading log %s: offset %q: want bytes", r.PathValue("name"), r.FormValue("offset"))
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	control := http.NewResponseController(w)
	err = copyLog(r.Context(), w, func() { _ = control.Flush() }, path, r.PathValue("name"), offset, r.FormValue("follow") == "true", j)
	if err != nil {
		// The answer has begun: only breaking it off tells the reader that it is not whole.
		panic(http.ErrAbortHandler)
	}
	return nil
}
