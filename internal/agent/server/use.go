// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
)

// useEvery is the interval between two looks at a node, of which the answers to the reaper are independent. GPUs that are busy for
// less than half of the time, in pieces shorter than that, are still found within minutes.
const useEvery = 30 * time.Second

// use remembers when a node was used last.
type use struct {
	now func() time.Time

	mu   sync.Mutex
	kind agent.UseKind
	at   time.Time
}

func newUse(now func() time.Time) *use {
	if now == nil {
		now = time.Now
	}
	return &use{now: now, kind: agent.StartUse, at: now()}
}

// begin makes now the last use.
func (u *use) begin(kind agent.UseKind) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.kind, u.at = kind, u.now()
}

// last returns the last use. The difference is by the monotonic clock, which is never set.
func (u *use) last() agent.Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	return agent.Use{Kind: u.kind, Idle: u.now().Sub(u.at), At: u.at.UTC()}
}

// watchUse looks at the node periodically until ctx is done.
func (s *Server) watchUse(ctx context.Context) {
	ticker := time.NewTicker(useEvery)
	defer ticker.Stop()
	for {
		s.lookForUse(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookForUse notes the use in progress. It runs nvidia-smi only on a node without any other use.
func (s *Server) lookForUse(ctx context.Context) {
	switch {
	case len(s.jobs.running()) > 0:
		s.use.begin(agent.JobUse)
	case s.shells.open() || s.ssh.Connected() || os.Getpid() == 1 && entered(processTable(), os.Getpid(), isAgent):
		s.use.begin(agent.ShellUse)
	case s.services != nil && s.services.InUse(ctx):
		s.use.begin(agent.BrowserUse)
	case s.gpusBusy(ctx):
		s.use.begin(agent.GPUUse)
	}
}

// entered reports whether a process was started in the container from outside, as oc rsh and oc exec do: such a process has no parent
// in it. self is PID 1. The kubelet starts the agent's own program in the same way, to ask whether the node is ready.
func entered(all []process, self int, isAgent func(pid int) bool) bool {
	for _, process := range all {
		if process.parent == 0 && process.pid != self && !process.dead && !isAgent(process.pid) {
			return true
		}
	}
	return false
}

// isAgent reports whether a process runs the program of this one, or has ended.
func isAgent(pid int) bool {
	own, err := os.Stat(procPath(os.Getpid(), "exe"))
	other, gone := os.Stat(procPath(pid, "exe"))
	return gone != nil || err == nil && os.SameFile(own, other)
}

// unmeasuredIdle is more than what the driver occupies of an unused GPU.
const unmeasuredIdle agent.Bytes = 256 << 20

// gpusBusy reports whether a GPU of the node computes. nvidia-smi shows no utilization of some, such as MIG devices: those count as busy
// that have something in their memory. A node whose GPUs cannot be read may be in use.
func (s *Server) gpusBusy(ctx context.Context) bool {
	gpus, err := s.recentGPUs(ctx)
	if ctx.Err() != nil {
		return false
	}
	for _, gpu := range gpus {
		if gpu.Utilization > 0 || gpu.Unmeasured && gpu.MemoryUsed > unmeasuredIdle {
			return true
		}
	}
	return err != nil
}

// recentGPUs reads the GPUs, unless that was done some seconds ago. It does not end with ctx: that would stop nvidia-smi on the nodes
// where it takes longest.
func (s *Server) recentGPUs(ctx context.Context) ([]agent.GPU, error) {
	return s.gpuUse.recent(ctx.Done(), func() ([]agent.GPU, error) {
		gpus, _, err := facts.GPUs(context.Background(), s.config.Environ, s.config.GPUs)
		return gpus, err
	})
}

func (s *Server) lastUse(w http.ResponseWriter, r *http.Request) error {
	s.lookForUse(r.Context())
	return answer(w, s.use.last())
}

func (s *Server) beginUse(w http.ResponseWriter, _ *http.Request) error {
	s.use.begin(agent.StartUse)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
