package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
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
