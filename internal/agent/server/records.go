// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// recordFile returns the path of a file of a run's record. The agent's own files cannot be named.
func (s *Server) recordFile(r *http.Request) (string, error) {
	id, name := r.PathValue("id"), r.PathValue("name")
	if !agent.IsJobID(id) || name != agent.FabricReport {
		return "", fail.Becausef(fail.InvalidInput, "finding file %q of record %q: want %s", name, id, agent.FabricReport)
	}
	return filepath.Join(s.config.Paths.runsDir(), id, name), nil
}

func (s *Server) readRecord(w http.ResponseWriter, r *http.Request) error {
	path, err := s.recordFile(r)
	if err != nil {
		return err
	}
	content, err := claimfile.Read(path, agent.MaxRecordFile)
	if err != nil {
		return fmt.Errorf("reading the record: %w", err)
	}
	_, err = w.Write(content)
	return err
}

func (s *Server) writeRecord(w http.ResponseWriter, r *http.Request) error {
	path, err := s.recordFile(r)
	if err != nil {
		return err
	}
	content, err := io.ReadAll(http.MaxBytesReader(w, r.Body, agent.MaxRecordFile))
	if err != nil {
		return fail.Because(fail.InvalidInput, fmt.Errorf("taking %s into the record: %w", filepath.Base(path), err))
	}
	if err := record.WriteFile(path, content); err != nil {
		return fmt.Errorf("writing the record: %w", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
