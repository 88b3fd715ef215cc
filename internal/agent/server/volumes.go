// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// volume returns the folder of a check.
func (s *Server) volume(try agent.VolumeTry) (string, error) {
	if err := try.Validate(); err != nil {
		return "", err
	}
	if try.Path == agent.Datasets {
		return s.config.Paths.Datasets, nil
	}
	return s.config.Paths.Workspace, nil
}

func (s *Server) tryLock(w http.ResponseWriter, _ *http.Request, try agent.VolumeTry) error {
	dir, err := s.volume(try)
	if err != nil {
		return err
	}
	release, seen := s.config.Trial.Lock(dir, try.Check)
	if release != nil {
		release()
	}
	return answer(w, seen)
}

// holdLock answers at once, and holds the lock as long as the request lasts.
func (s *Server) holdLock(w http.ResponseWriter, r *http.Request, try agent.VolumeTry) error {
	dir, err := s.volume(try)
	if err != nil {
		return err
	}
	release, seen := s.config.Trial.Lock(dir, try.Check)
	if release != nil {
		defer release()
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(seen); err != nil || release == nil {
		return err
	}
	_ = http.NewResponseController(w).Flush()
	select {
	case <-r.Context().Done():
	case <-time.After(agent.HoldLimit):
	}
	return nil
}

func (s *Server) tryRename(w http.ResponseWriter, _ *http.Request, try agent.VolumeTry) error {
	dir, err := s.volume(try)
	if err != nil {
		return err
	}
	return answer(w, s.config.Trial.Replace(dir, try.Check, s.config.Node))
}

func (s *Server) clearTry(w http.ResponseWriter, _ *http.Request, try agent.VolumeTry) error {
	dir, err := s.volume(try)
	if err != nil {
		return err
	}
	s.config.Trial.Clear(dir, try.Check)
	return answer(w, struct{}{})
}

func (p Paths) caches() string { return filepath.Join(p.Home, "run", "caches.json") }

// caches returns what PUT /v1/caches has set. A file has it, because shells are processes of their own.
func (c Config) caches() (caches agent.Caches) {
	_ = claimfile.ReadJSON(c.Paths.caches(), maxRequest, &caches) // without it they are on the claim
	return caches
}

func (s *Server) setCaches(w http.ResponseWriter, _ *http.Request, caches agent.Caches) error {
	if err := record.WriteJSON(s.config.Paths.caches(), caches); err != nil {
		return fmt.Errorf("setting where caches are: %w", err)
	}
	for name := range s.config.cacheVariables() {
		if folder := s.config.additions()[name]; isFolder(name) {
			if err := os.MkdirAll(folder, 0o2775); err != nil {
				return fmt.Errorf("creating the folder of %s: %w", name, err)
			}
		}
	}
	return answer(w, struct{}{})
}

// cacheVariables returns the variables that place caches which need locks or renames. The caches of Hugging Face and datasets lie below
// HF_HOME, which all nodes share; moving only their locks would let two nodes write one cache. Inductor's locks and Triton's renames
// fail on such a volume, too, though each node has folders of its own. Logins stay on the claim: a user has written them.
func (c Config) cacheVariables() map[string]string {
	shared := filepath.Join(c.Paths.state(), "cache", "huggingface")
	own := filepath.Join(c.Paths.private(), "cache", fmt.Sprintf("node-%d", c.Node))
	if !c.caches().OnNode {
		return map[string]string{"HF_HOME": shared, "TORCHINDUCTOR_CACHE_DIR": filepath.Join(own, "inductor"),
			"TRITON_CACHE_DIR": filepath.Join(own, "triton")}
	}
	node := filepath.Join(c.Paths.Home, "cache")
	return map[string]string{
		"HF_HOME": filepath.Join(node, "huggingface"), "HF_TOKEN_PATH": filepath.Join(shared, "token"),
		"HF_STORED_TOKENS_PATH":   filepath.Join(shared, "stored_tokens"),
		"TORCHINDUCTOR_CACHE_DIR": filepath.Join(node, "inductor"), "TRITON_CACHE_DIR": filepath.Join(node, "triton"),
	}
}
