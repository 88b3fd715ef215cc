package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git/pack"
)

// remote is a repository on a server.
type remote struct {
	log     *slog.Logger
	client  *http.Client
	keys    keyring
	address address
	// scratch is a folder for packs.
	scratch string
	silence time.Duration
}

// fetch receives a pack with the commit that the revision means.
func (r *remote) fetch(ctx context.Context, revision string) (p *pack.Pack, commit pack.Hash, err error) {
	defer func() {
		if err != nil && p != nil {
			p.Close()
			p = nil
		}
	}()
	whole, isWhole := pack.ParseHash(revision)
	if isWhole {
		commit = whole
		p, err = r.fetchCommit(ctx, whole)
	} else {
		p, commit, err = r.fetchName(ctx, revision)
	}
	if err != nil {
		return p, commit, err
	}
	commit, err = peel(p, commit)
	if err != nil {
		return p, commit, fail.Becausef(fail.RevisionNotFound, "finding revision %q of %s: %w", revision, r.address, err)
	}
	return p, commit, nil
}

// session has one conversation and explains its failure.
func (r *remote) session(ctx context.Context, talk func(*session) error) error {
	patient, patience := newPatience(ctx, r.silence)
	defer patience.stop()
	var l link = &httpLink{ctx: patient, patience: patience, client: r.client, url: r.address.url()}
	if r.address.scheme == "ssh" {
		l = &sshLink{ctx: patient, patience: patience, address: r.address, keys: r.keys}
	}
	defer l.close()
	s, err := converse(l)
	if err == nil {
		err = talk(s)
	}
	if err != nil && patient.Err() != nil {
		err = context.Cause(patient)
	}
	return explain(ctx, r.keys, r.address, err)
}

// receive takes a pack within a session.
func (r *remote) receive(ctx context.Context, s *session, o order) (*pack.Pack, error) {
	stream, err := s.pack(o)
	if err != nil {
		return nil, err
	}
	p := newProgress(r.log)
	objects, of := 0, 0
	in := &counted{from: stream, add: func(n int) {
		p.add(n, func(done, rate string) string {
			return fmt.Sprintf("Receiving %s: %s, %d of %d objects, %s/s.", r.address, done, objects, of, rate)
		})
	}}
	got, err := pack.Receive(ctx, in, r.scratch, func(done, total int) { objects, of = done, total })
	if err != nil {
		return nil, err
	}
	r.log.Info(fmt.Sprintf("Received %s, %s, in %s.", humanize.Count(of, "object"), humanize.Bytes(p.total()), time.Since(p.start).Round(time.Millisecond)),
		slog.Int64("bytes", p.total()))
	return got, nil
}

// counted tells how much is read.
type counted struct {
	from io.Reader
	add  func(n int)
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	c.add(n)
	return n, err
}

// fetchCommit receives one commit by its hash, with its history where the
// server gives it no other way.
func (r *remote) fetchCommit(ctx context.Context, commit pack.Hash) (p *pack.Pack, err error) {
	r.log.Info(fmt.Sprintf("Fetching commit %s of %s.", commit, r.address))
	refused := false
	err = r.session(ctx, func(s *session) error {
		if !s.anyCommit() {
			refs, err := s.refs("")
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(refs, func(t ref) bool { return t.hash == commit }) {
				refused = true
				return nil
			}
		}
		p, err = r.receive(ctx, s, order{wants: []pack.Hash{commit}})
		var said *serverError
		if !errors.As(err, &said) {
			return err
		}
		if strings.Contains(said.text, "not our ref") {
			return r.noCommit(commit)
		}
		refused = true
		return nil
	})
	if refused && err == nil {
		r.log.Warn("The server does not give single commits; fetching the whole history.")
		return r.fetchHistory(ctx, commit)
	}
	return p, err
}

func (r *remote) noCommit(commit pack.Hash) error {
	return fail.Advise(
		fail.Becausef(fail.RevisionNotFound, "finding commit %s of %s: the repository does not have it: want one that was pushed", commit, r.address),
		"git branch --remotes --contains %s   # in your clone: none means that it was not pushed", commit)
}

// fetchHistory receives all that branches and tags have.
func (r *remote) fetchHistory(ctx context.Context, commit pack.Hash) (p *pack.Pack, err error) {
	err = r.session(ctx, func(s *session) error {
		refs, err := s.refs("refs/heads/", "refs/tags/")
		if err != nil {
			return err
		}
		if len(refs) == 0 {
			return r.noCommit(commit)
		}
		if p, err = r.receive(ctx, s, order{wants: tips(refs), history: true}); err != nil {
			return err
		}
		if _, _, err := p.Stat(commit); err != nil {
			return r.noCommit(commit)
		}
		return nil
	})
	return p, err
}

// tips are the different objects that refs name.
func tips(refs []ref) []pack.Hash {
	var hashes []pack.Hash
	seen := map[pack.Hash]bool{}
	for _, r := range refs {
		if !seen[r.hash] {
			seen[r.hash] = true
			hashes = append(hashes, r.hash)
		}
	}
	return hashes
}

// peel follows annotated tags to their commit.
func peel(p *pack.Pack, h pack.Hash) (pack.Hash, error) {
	for {
		kind, _, err := p.Stat(h)
		switch {
		case err != nil:
			return h, err
		case kind == pack.Commit:
			return h, nil
		case kind != pack.Tag:
			return h, fmt.Errorf("it is a %s: want a commit", kind)
		}
		content, err := p.Read(h, pack.Tag)
		if err != nil {
			return h, err
		}
		if h, err = header(content, "object"); err != nil {
			return h, fmt.Errorf("reading tag: %w", err)
		}
	}
}

// header reads the hash in the first line of a commit or tag.
func header(content []byte, name string) (pack.Hash, error) {
	first, _, _ := strings.Cut(string(content[:min(len(content), 100)]), "\n")
	hex, ok := strings.CutPrefix(first, name+" ")
	h, parsed := pack.ParseHash(hex)
	if !ok || !parsed {
		return h, fmt.Errorf("%q: want %s and a hash", first, name)
	}
	return h, nil
}
