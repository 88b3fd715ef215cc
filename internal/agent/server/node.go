// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

func (s *Server) facts(w http.ResponseWriter, r *http.Request) error {
	cgroup := os.DirFS(s.config.Paths.Sys)
	memory, cpu := facts.ReadMemory(cgroup), facts.ReadCPU(cgroup)
	f := agent.Facts{
		Health: s.currentHealth(), Node: s.config.Node, Pod: s.config.Pod, KubernetesNode: s.config.KubernetesNode,
		GPUsExpected: facts.GivenGPUs(s.config.Environ, s.config.GPUs), CPUs: cpus(),
		MemoryLimit: memory.Limit, MemoryUsed: memory.Used, MemoryCache: memory.Cache,
		CPUPeriods: cpu.Periods, CPUThrottled: cpu.Throttled, SharedMemory: facts.VolumeSpace("/dev/shm"),
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
	options := rdma.Options{Root: rdma.RootFS(sysRoot), SysRoot: sysRoot, Environ: s.config.Environ, Interfaces: rdma.SystemInterfaces,
		Expected: expected}
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
	for _, name := range slices.Sorted(maps.Keys(network.Set)) {
		s.log.Info("Auto-detected " + name + "=" + network.Set[name])
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
		network.CPUs = append(network.CPUs, rdma.CPUsNear(rdma.RootFS(rdma.SysRootOf(s.config.Environ)), gpu.PCI))
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
