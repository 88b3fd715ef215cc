// SPDX-License-Identifier: Apache-2.0

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

// route is one request of the protocol, and who may send it in addition to the steps.
type route struct {
	pattern string
	also    agent.Peer
	answer  func(http.ResponseWriter, *http.Request) error
}

func (s *Server) routes() []route {
	return []route{
		{"GET " + agent.MetricsPath, agent.PrometheusPeer, s.metrics},
		{"POST /v1/trees/{hash}/contents", agent.AgentPeer, s.passTree},
		{"GET " + agent.UsePath, agent.ReaperPeer, s.lastUse},
		{"PUT " + agent.UsePath, 0, s.beginUse},
		{"GET /v1/health", 0, s.health},
		{"GET /v1/facts", agent.LaunchPeer, s.facts},
		{"POST /v1/rdma", 0, reading(s.rdma)},
		{"PUT /v1/network", 0, reading(s.setNetwork)},
		{"GET /v1/workspace", 0, s.workspace},
		{"POST /v1/resolve", 0, reading(s.resolve)},
		{"POST /v1/turn", 0, s.giveTurn},
		{"GET /v1/trees/current", agent.LaunchPeer, s.currentTree},
		{"GET /v1/trees/{hash}", 0, s.tree},
		{"GET /v1/trees/{hash}/script", agent.LaunchPeer, s.script},
		{"POST /v1/trees/{hash}", 0, s.planTree},
		{"PUT /v1/trees/{hash}/content", 0, s.receiveTree},
		{"POST /v1/trees/{hash}/pull", 0, reading(s.pullTree)},
		{"POST /v1/trees/{hash}/switch", 0, reading(s.switchTree)},
		{"POST /v1/checkpoints", 0, reading(s.checkpoints)},
		{"PUT /v1/jobs/{id}", agent.LaunchPeer, reading(s.startJob)},
		{"GET /v1/jobs/{id}", agent.LaunchPeer, s.job},
		{"GET /v1/jobs/{id}/watch", agent.LaunchPeer, s.watchJob},
		{"POST /v1/jobs/{id}/stacks", 0, s.stacks},
		{"POST /v1/jobs/{id}/stop", agent.LaunchPeer, reading(s.stopJob)},
		{"GET /v1/jobs/{id}/logs/{name}", agent.LaunchPeer, s.jobLog},
		{"PUT /v1/shells/{id}", 0, s.keepShell},
		{"DELETE /v1/shells/{id}", 0, s.endShell},
		{"PUT /v1/ssh", 0, reading(s.allowSSH)},
		{"GET /v1/records/{id}/{name}", 0, s.readRecord},
		{"PUT /v1/records/{id}/{name}", 0, s.writeRecord},
	}
}

// Handler answers the whole protocol to steps, and some requests to others. TLS decides who may ask.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, route := range s.routes() {
		mux.HandleFunc(route.pattern, func(w http.ResponseWriter, r *http.Request) {
			agent.StampClock(w.Header())
			if err := route.serve(w, r); err != nil && r.Context().Err() == nil {
				s.refuse(w, r, err)
			}
		})
	}
	return mux
}

// serve answers a client that may send the request.
func (r route) serve(w http.ResponseWriter, request *http.Request) error {
	switch peer := agent.PeerOf(request.TLS); {
	case peer == agent.StepPeer, peer != agent.UnknownPeer && peer == r.also, peer == agent.LaunchPeer && r.also == agent.AgentPeer:
	default:
		return fail.Becausef(fail.PermissionDenied, "answering %s %s: the client is not a step", request.Method, request.URL.Path)
	}
	return r.answer(w, request)
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusInternalServerError
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		s.background.Go(s.collect) // for the next attempt
		err = fail.Advise(fail.Because(fail.DiskFull, err),
			"delete obsolete files from the workspace claim: mlenv shell %d -- sh -c 'du -sh /workspace/* /workspace/.mlenv/*'; "+
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
		request, err := readJSON[T](w, r, maxRequest)
		if err != nil {
			return err
		}
		return f(w, r, request)
	}
}

// readJSON decodes a request of at most so many bytes.
func readJSON[T any](w http.ResponseWriter, r *http.Request, most int64) (value T, err error) {
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
