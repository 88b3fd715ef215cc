package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

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
