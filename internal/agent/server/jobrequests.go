// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func (s *Server) startJob(w http.ResponseWriter, r *http.Request, spec agent.JobSpec) error {
	if !spec.Deadline.IsZero() { // by this node's clock
		spec.Deadline = spec.Deadline.Add(agent.ClockDifference(r.Header))
	}
	status, made, err := s.jobs.start(r.PathValue("id"), spec)
	if err != nil {
		return err
	}
	if status.New = made; made {
		s.use.begin(agent.JobUse)
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
		addUnhooked(&status)
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

// watchJob sends the status after every change. Growth of a log is not a change.
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
