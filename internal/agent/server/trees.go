// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

func treeHash(r *http.Request) tree.Digest { return tree.Digest(r.PathValue("hash")) }

func (s *Server) planTree(w http.ResponseWriter, r *http.Request) error {
	manifest, err := readJSON[tree.Manifest](w, r, maxManifest)
	if err != nil {
		return err
	}
	s.transfers.endEarlier(r)
	present, missing, err := s.trees.Plan(manifest, treeHash(r))
	if err != nil {
		return err
	}
	return answer(w, agent.TreePlan{Present: present, Missing: missing, Begun: s.trees.PartialSize(missing)})
}

// startOffset reads at which byte the first content of a transfer continues.
func startOffset(r *http.Request) (int64, error) {
	text := cmp.Or(r.URL.Query().Get("from"), "0")
	from, err := strconv.ParseInt(text, 10, 64)
	if err != nil || from < 0 {
		return 0, fail.Becausef(fail.InvalidInput, "passing contents of tree %s: from %q: want bytes", treeHash(r), text)
	}
	return from, nil
}

func (s *Server) receiveTree(w http.ResponseWriter, r *http.Request) error {
	from, err := startOffset(r)
	if err != nil {
		return err
	}
	r, done := s.transfers.begin(w, r)
	defer done()
	return s.receive(w, r, from, r.Body)
}

func (s *Server) receive(w http.ResponseWriter, r *http.Request, from int64, body io.Reader) error {
	if err := s.trees.Receive(r.Context(), treeHash(r), from, body); err != nil {
		return err
	}
	return answer(w, agent.TreeState{Hash: treeHash(r)})
}

func (s *Server) switchTree(w http.ResponseWriter, r *http.Request, request agent.Switch) error {
	if err := s.trees.Switch(treeHash(r), request.Venv); err != nil {
		return err
	}
	s.background.Go(s.collect)
	return answer(w, agent.TreeState{Hash: treeHash(r)})
}

// collect removes what no job needs any more, unless it is doing so: files of ended jobs, old trees, old virtual environments.
func (s *Server) collect() {
	if !s.collecting.TryLock() {
		return
	}
	defer s.collecting.Unlock()
	const keep = 5 // so that returning to an old tree costs nothing
	pinned := func(hash tree.Digest) bool { return s.jobs.pinned(hash) || s.trees.InUse(hash) }
	err := s.trees.CleanUp()
	if _, collectErr := s.trees.Collect(keep, pinned); err != nil || collectErr != nil {
		s.log.Warn("Old trees stay.", "error", errors.Join(err, collectErr))
	}
	if err := s.jobs.collectVenvs(); err != nil {
		s.log.Warn("Old virtual environments stay.", "error", err)
	}
}

func (s *Server) tree(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.pathOf(treeHash(r)); err != nil {
		return err
	}
	return answer(w, agent.TreeState{Hash: treeHash(r)})
}

func (s *Server) pathOf(hash tree.Digest) (string, error) {
	dir, err := s.trees.Path(hash)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("finding tree %s: %w", hash, fs.ErrNotExist)
	}
	return dir, err
}

// script answers which arguments of launchers a script takes.
func (s *Server) script(w http.ResponseWriter, r *http.Request) error {
	dir, err := s.pathOf(treeHash(r))
	if err != nil {
		return err
	}
	return answer(w, agent.ScriptArguments(claimfile.FolderFS(dir), r.URL.Query().Get("path")))
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
