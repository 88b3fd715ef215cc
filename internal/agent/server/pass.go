// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

const (
	// mostPassed is how many agents may read trees here at once.
	mostPassed = 4
	// passTime bounds one transfer between agents.
	passTime = 15 * time.Minute
	// silentTime bounds the wait for the next bytes of a transfer between agents.
	silentTime = 30 * time.Second
)

// passTree sends contents of a tree to a step or another agent, which verifies them.
func (s *Server) passTree(w http.ResponseWriter, r *http.Request) error {
	select {
	case s.passing <- struct{}{}:
		defer func() { <-s.passing }()
	default:
		return fail.Becausef(fail.SyncFailed, "passing tree %s: %d agents read here already", treeHash(r), mostPassed)
	}
	// A slow reader must not keep others out for ever. Only a test's recorder has no deadlines.
	control, until := http.NewResponseController(w), time.Now().Add(passTime)
	_, _ = control.SetReadDeadline(until), control.SetWriteDeadline(until)
	dir, m, err := s.trees.CompleteTree(treeHash(r))
	if err != nil {
		return err
	}
	const digestLength, others = 67, 64 // in JSON, in bytes: an agent may not fill this one's memory
	contents, err := readJSON[[]tree.Digest](w, r, int64(digestLength*len(m.Entries)+others))
	if err != nil {
		return err
	}
	begins := make(map[tree.Digest]int64)
	if len(contents) > 0 {
		if begins[contents[0]], err = startOffset(r); err != nil {
			return err
		}
	}
	if err := tree.WriteContents(r.Context(), w, dir, m, contents, begins); err != nil {
		s.log.Warn("Passing a tree on failed.", "tree", treeHash(r), "error", err)
		panic(http.ErrAbortHandler) // the answer has begun: only a broken connection shows that it is incomplete
	}
	return nil
}

// pullTree receives a planned tree from another agent. It trusts that agent no more than the network: Receive verifies every byte.
func (s *Server) pullTree(w http.ResponseWriter, r *http.Request, request agent.Pull) error {
	if request.From < 0 || request.From >= s.config.Nodes || request.From == s.config.Node {
		return fail.Becausef(fail.InvalidInput, "pulling tree %s from node %d: want another of %d nodes", treeHash(r), request.From,
			s.config.Nodes)
	}
	r, done := s.transfers.begin(w, r)
	defer done()
	missing, err := s.trees.Missing(treeHash(r))
	if err != nil {
		return err
	}
	peer, err := s.config.PeerClient(request.From)
	if err != nil {
		return err
	}
	defer peer.Close()
	ctx, cancel := context.WithTimeout(r.Context(), passTime)
	defer cancel()
	ctx, heard, stop := agent.WithSilence(ctx, silentTime)
	defer stop()
	begun := s.trees.PartialSize(missing)
	body, err := peer.TreeContents(ctx, treeHash(r), missing, begun)
	if err != nil {
		return fail.Because(fail.SyncFailed, fmt.Errorf("pulling tree %s from node %d: %w", treeHash(r), request.From, err))
	}
	defer body.Close()
	return s.receive(w, r, begun, io.TeeReader(body, heard))
}
