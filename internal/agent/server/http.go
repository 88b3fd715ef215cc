package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Bounds of requests that are not streams, in bytes.
const (
	maxManifest = 256 << 20
	maxRequest  = 8 << 20
)

// Handler answers the whole protocol to steps, and only passTree to other agents. TLS decides who may ask.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	handleAll := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			agent.StampClock(w.Header())
			if err := f(w, r); err != nil && r.Context().Err() == nil {
				s.refuse(w, r, err)
			}
		})
	}
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		handleAll(pattern, func(w http.ResponseWriter, r *http.Request) error {
			if !agent.FromStep(r.TLS) {
				return fail.Becausef(fail.PermissionDenied, "answering %s %s: the client is not a step", r.Method, r.URL.Path)
			}
			return f(w, r)
		})
	}
	handleAll("POST /v1/trees/{hash}/contents", s.passTree)
	handle("GET /v1/health", s.health)
	handle("GET /v1/facts", s.facts)
	handle("POST /v1/rdma", reading(s.rdma))
	handle("PUT /v1/network", reading(s.setNetwork))
	handle("PUT /v1/caches", reading(s.setCaches))
	handle("POST /v1/volumes/lock", reading(s.tryLock))
	handle("POST /v1/volumes/hold", reading(s.holdLock))
	handle("POST /v1/volumes/rename", reading(s.tryRename))
	handle("POST /v1/volumes/clear", reading(s.clearTry))
	handle("GET /v1/workspace", s.workspace)
	handle("POST /v1/resolve", reading(s.resolve))
	handle("POST /v1/turn", s.giveTurn)
	handle("GET /v1/trees/current", s.currentTree)
	handle("GET /v1/trees/{hash}", s.tree)
	handle("POST /v1/trees/{hash}", s.planTree)
	handle("PUT /v1/trees/{hash}/content", func(w http.ResponseWriter, r *http.Request) error { return s.receive(w, r, r.Body) })
	handle("POST /v1/trees/{hash}/pull", reading(s.pullTree))
	handle("POST /v1/trees/{hash}/switch", reading(s.switchTree))
	handle("POST /v1/checkpoints", reading(s.checkpoints))
	handle("PUT /v1/jobs/{id}", reading(s.startJob))
	handle("GET /v1/jobs/{id}", s.job)
	handle("GET /v1/jobs/{id}/watch", s.watchJob)
	handle("POST /v1/jobs/{id}/stacks", s.stacks)
	handle("POST /v1/jobs/{id}/stop", reading(s.stopJob))
	handle("GET /v1/jobs/{id}/logs/{name}", s.jobLog)
	handle("PUT /v1/shells/{id}", s.keepShell)
	handle("DELETE /v1/shells/{id}", s.endShell)
	handle("GET /v1/records/{id}/{name}", s.readRecord)
	handle("PUT /v1/records/{id}/{name}", s.writeRecord)
	return mux
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusInternalServerError
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fail.Advise(fail.Because(fail.DiskFull, err),
			"delete obsolete files from the workspace claim: mlenv shell %d -- sh -c 'du -sh /workspace/* /workspace/.mlenv/work/*'; "+
				"or have the claim expanded", s.config.Node)
	}
	problem := agent.Problem{Message: err.Error(), Next: fail.NextOf(err)}
	switch reason := fail.ReasonOf(err); {
	case reason != fail.Internal:
		problem.Reason, code = reason, http.StatusUnprocessableEntity
	case errors.Is(err, fs.ErrNotExist):
		code = http.StatusNotFound
	default:
		s.log.Warn("A request failed.", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(problem)
}

func answer(w http.ResponseWriter, value any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(value)
}

// reading decodes the request for a handler.
func reading[T any](f func(http.ResponseWriter, *http.Request, T) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		request, err := read[T](w, r, maxRequest)
		if err != nil {
			return err
		}
		return f(w, r, request)
	}
}

// read decodes a request of at most so many bytes.
func read[T any](w http.ResponseWriter, r *http.Request, most int64) (value T, err error) {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, most)).Decode(&value); err != nil {
		return value, fail.Because(fail.InvalidInput, fmt.Errorf("reading the request %s %s: %w", r.Method, r.URL.Path, err))
	}
	return value, nil
}

func (s *Server) currentHealth() agent.Health {
	return agent.Health{Protocol: agent.Protocol, Version: s.config.Version}
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	return answer(w, s.currentHealth())
}

func (s *Server) facts(w http.ResponseWriter, r *http.Request) error {
	cgroup := os.DirFS(s.config.Paths.Sys)
	memory, cpu := facts.ReadMemory(cgroup), facts.ReadCPU(cgroup)
	f := agent.Facts{
		Health: s.currentHealth(), Node: s.config.Node, Pod: s.config.Pod, KubernetesNode: s.config.KubernetesNode,
		GPUsExpected: s.config.GPUs, CPUs: cpus(), MemoryLimit: memory.Limit, MemoryUsed: memory.Used, MemoryCache: memory.Cache,
		CPUPeriods: cpu.Periods, CPUThrottled: cpu.Throttled, SharedMemory: facts.Space("/dev/shm"),
		Workspace: facts.Volume(s.config.Paths.Workspace), Datasets: facts.Volume(s.config.Paths.Datasets),
		Environment: s.config.publicEnvironment(), Network: s.config.network(), Running: s.jobs.running(),
	}
	if s.services != nil {
		f.Services = s.services.Status()
	}
	var err error
	if f.GPUs, _, err = facts.GPUs(r.Context(), s.config.Environ, s.config.GPUs); err != nil {
		f.GPUProblem = err.Error()
	}
	return answer(w, f)
}

// rdma detects the devices at each request: ports go down, and interfaces appear late.
func (s *Server) rdma(w http.ResponseWriter, r *http.Request, expected rdma.Expected) error {
	sysRoot := rdma.SysRootOf(s.config.Environ)
	options := rdma.Options{Root: rdma.Root(sysRoot), SysRoot: sysRoot, Environ: s.config.Environ, Interfaces: rdma.SystemInterfaces, Expected: expected}
	if view, err := s.view(r.Context()); err == nil { // facts report the error
		options.NVLink = view.nvLink
		for _, gpu := range view.gpus {
			options.GPUs = append(options.GPUs, gpu.PCI)
		}
	}
	return answer(w, rdma.Detect(options))
}

func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request, network agent.Network) error {
	if err := network.Validate(); err != nil {
		return fail.Because(fail.InvalidInput, fmt.Errorf("setting the node's network: %w", err))
	}
	s.adaptToGPUs(r.Context(), &network)
	if err := record.WriteJSON(s.config.Paths.network(), network); err != nil {
		return fmt.Errorf("setting the node's network: %w", err)
	}
	s.startServices()
	return answer(w, s.config.publicEnvironment())
}

// gpuView is which GPUs the container was given. It does not change as long as the container runs.
type gpuView struct {
	gpus []agent.GPU
	// more is true if the container sees others too.
	more bool
	// nvLink is yes if NVLink joins the GPUs, empty if that is unknown.
	nvLink rdma.Answer
}

// view asks nvidia-smi, which takes seconds on some nodes, once.
func (s *Server) view(ctx context.Context) (*gpuView, error) {
	if known := s.gpus.Load(); known != nil {
		return known, nil
	}
	gpus, more, err := facts.GPUs(ctx, s.config.Environ, s.config.GPUs)
	if err != nil {
		return nil, err
	}
	view := &gpuView{gpus: gpus, more: more}
	if len(gpus) > 1 {
		view.nvLink = facts.NVLink(ctx)
	}
	s.gpus.Store(view)
	return view, nil
}

// adaptToGPUs hides from jobs, shells and services the GPUs of the node that the pod was not given: a privileged pod sees them too.
// It removes a P2P level that would only turn off transfers over PCIe.
func (s *Server) adaptToGPUs(ctx context.Context, network *agent.Network) {
	view, err := s.view(ctx)
	if err != nil {
		return // provision refuses GPUs that cannot be read
	}
	level, _ := agent.Variable(s.config.Environ, nccl.P2PLevel)
	if network.Set[nccl.P2PLevel] == "" && nccl.UnsetP2P(level, len(view.gpus), view.nvLink == rdma.Yes) {
		network.Unset = append(network.Unset, nccl.P2PLevel)
	}
	network.CPUs = nil
	var uuids []string
	for _, gpu := range view.gpus {
		network.CPUs = append(network.CPUs, rdma.CPUsNear(rdma.Root(rdma.SysRootOf(s.config.Environ)), gpu.PCI))
		uuids = append(uuids, gpu.UUID)
	}
	if !view.more {
		return
	}
	if network.Set == nil {
		network.Set = map[string]string{}
	}
	network.Set[agent.CUDADevices] = strings.Join(uuids, ",")
	if err := s.config.linkSMI(); err != nil {
		s.log.Warn("nvidia-smi will show all GPUs of the node.", "error", err)
	}
}

func (s *Server) workspace(w http.ResponseWriter, _ *http.Request) error {
	return answer(w, facts.Volume(s.config.Paths.Workspace))
}

// cpus counts the processors that the container may run on.
func cpus() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0
	}
	return set.Count()
}

func (s *Server) resolve(w http.ResponseWriter, r *http.Request, names []string) error {
	if len(names) > agent.MaxNodes {
		return fail.Becausef(fail.InvalidInput, "resolving %d names: want at most %d", len(names), agent.MaxNodes)
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

// giveTurn answers when no other request has the turn, which lasts as long as the request.
func (s *Server) giveTurn(w http.ResponseWriter, r *http.Request) error {
	select {
	case s.turn <- struct{}{}:
	case <-r.Context().Done():
		return nil
	}
	defer func() { <-s.turn }()
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	return nil
}

func hash(r *http.Request) tree.Digest { return tree.Digest(r.PathValue("hash")) }

func (s *Server) planTree(w http.ResponseWriter, r *http.Request) error {
	manifest, err := read[tree.Manifest](w, r, maxManifest)
	if err != nil {
		return err
	}
	present, missing, err := s.trees.Plan(manifest, hash(r))
	if err != nil {
		return err
	}
	return answer(w, agent.TreePlan{Present: present, Missing: missing})
}

func (s *Server) receive(w http.ResponseWriter, r *http.Request, body io.Reader) error {
	if err := s.trees.Receive(r.Context(), hash(r), body); err != nil {
		return err
	}
	return answer(w, agent.TreeState{Hash: hash(r)})
}

func (s *Server) switchTree(w http.ResponseWriter, r *http.Request, request agent.Switch) error {
	if err := s.trees.Switch(hash(r), request.Venv); err != nil {
		return err
	}
	s.background.Go(func() {
		const keep = 5 // so that returning to an old tree costs nothing
		pinned := func(hash tree.Digest) bool { return s.jobs.pinned(hash) || s.trees.InUse(hash) }
		err := s.trees.Sweep()
		if _, collectErr := s.trees.Collect(keep, pinned); err != nil || collectErr != nil {
			s.log.Warn("Old trees stay.", "error", errors.Join(err, collectErr))
		}
		if err := s.jobs.collectVenvs(); err != nil {
			s.log.Warn("Old virtual environments stay.", "error", err)
		}
	})
	return answer(w, agent.TreeState{Hash: hash(r)})
}

func (s *Server) tree(w http.ResponseWriter, r *http.Request) error {
	_, err := s.trees.Path(hash(r))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("finding tree %s: %w", hash(r), fs.ErrNotExist)
	} else if err != nil {
		return err
	}
	return answer(w, agent.TreeState{Hash: hash(r)})
}

func (s *Server) currentTree(w http.ResponseWriter, _ *http.Request) error {
	state := agent.TreeState{}
	if state.Hash, state.Venv = s.trees.Current(); state.Hash != "" {
		if _, err := s.trees.Path(state.Hash); err != nil {
			return err
		}
	}
	return answer(w, state)
}

func (s *Server) startJob(w http.ResponseWriter, r *http.Request, spec agent.JobSpec) error {
	if !spec.Deadline.IsZero() { // by this node's clock
		spec.Deadline = spec.Deadline.Add(agent.ClockDifference(r.Header))
	}
	status, made, err := s.jobs.start(r.PathValue("id"), spec)
	if err != nil {
		return err
	}
	if status.New = made; made {
		s.log.Info("Job started.", "job", status.ID, "run", spec.Run, "launcher", spec.Launcher, "script", spec.Script)
		w.WriteHeader(http.StatusCreated)
	}
	return answer(w, status)
}

// findJob returns the status of a request's job. The job is nil unless this agent started it.
func (s *Server) findJob(r *http.Request) (agent.JobStatus, *job, error) {
	status, j, err := s.jobs.get(r.PathValue("id"))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("finding job %s: %w", r.PathValue("id"), fs.ErrNotExist)
	}
	return status, j, err
}

func (s *Server) job(w http.ResponseWriter, r *http.Request) error {
	status, j, err := s.findJob(r)
	if err != nil {
		return err
	}
	if j != nil && !j.isOver() {
		j.addQuiet(&status)
		j.addRendezvous(&status)
		status.RankSeconds = rankSeconds(j.dir.Metrics())
	}
	return answer(w, status)
}

func (s *Server) stopJob(w http.ResponseWriter, r *http.Request, stop agent.Stop) error {
	status, j, err := s.findJob(r)
	if err != nil {
		return err
	}
	if j != nil {
		s.log.Info("Stopping a job.", "job", status.ID, "reason", stop.Reason)
		j.stop(stop)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// watchJob sends the status after every change. Growth of a log is no change.
func (s *Server) watchJob(w http.ResponseWriter, r *http.Request) error {
	status, j, err := s.findJob(r)
	if err != nil {
		return err
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
			// An error means that the client is gone; the request's context ends then too.
			_, _ = w.Write(append(line, '\n'))
			_ = control.Flush()
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
	status, j, err := s.findJob(r)
	if err != nil {
		return err
	}
	path, err := logFile(status, r.PathValue("name"))
	if err != nil {
		return err
	}
	offset, err := strconv.ParseInt(r.FormValue("offset"), 10, 64)
	if err != nil || offset < 0 {
		return fail.Becausef(fail.InvalidInput, "reading log %s: offset %q: want bytes", r.PathValue("name"), r.FormValue("offset"))
	}
	if end, err := strconv.ParseInt(r.FormValue("end"), 10, 64); err == nil && end >= 0 {
		if info, err := os.Lstat(path); err == nil {
			offset = max(offset, info.Size()-end)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	control := http.NewResponseController(w)
	err = copyLog(r.Context(), w, func() { _ = control.Flush() }, path, r.PathValue("name"), offset, r.FormValue("follow") == "true", j)
	if errors.Is(err, claimfile.ErrNotRegular) {
		s.log.Warn("Skipping a log.", "error", err)
		return nil
	}
	if err != nil {
		// The answer has begun: only a broken connection shows the reader that it is incomplete.
		panic(http.ErrAbortHandler)
	}
	return nil
}
