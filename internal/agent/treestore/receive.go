package treestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// small is up to how many bytes a content is held in memory, so that several are
// written at once. A larger one goes straight to its file.
const small = 256 << 10

// Receive builds the tree that Plan was asked about, from files that are here and
// from the contents in body, as tree.WriteContents sends them. The tree gets its
// name only when all of it is right. Of a transfer that breaks, or has a wrong
// byte, which is SyncFailed, the good contents are kept: plan again and send the
// rest. A tree that programs changed is mended: what they made of its files is
// moved to HASH.changed-TIME. Returned are the files and bytes of the whole tree.
func (s *Store) Receive(ctx context.Context, hash tree.Digest, body io.Reader) (files int, size int64, err error) {
	if files, size, err = s.receive(ctx, hash, body); err != nil {
		return 0, 0, fail.Becausef(fail.SyncFailed, "receiving tree %s: %w", hash, err)
	}
	return files, size, nil
}

func (s *Store) receive(ctx context.Context, hash tree.Digest, body io.Reader) (files int, size int64, err error) {
	m, err := s.manifest(hash)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, errors.New("it was not planned here")
	}
	if err != nil {
		return 0, 0, err
	}
	n, err := nameManifest(m)
	if err != nil {
		return 0, 0, err
	}
	st, err := s.newStage(n)
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(st.dir)
	if err := st.fill(ctx, body); err != nil {
		return 0, 0, errors.Join(err, st.keepArrived())
	}
	if err := s.land(hash, st); err != nil {
		return 0, 0, errors.Join(err, st.keepArrived())
	}
	files, size = m.Totals()
	return files, size, s.dropKept(m)
}

// fill makes the tree complete.
func (st *stage) fill(ctx context.Context, body io.Reader) error {
	if err := st.lay(); err != nil {
		return err
	}
	if err := st.take(); err != nil {
		return err
	}
	if err := st.read(ctx, body); err != nil {
		return err
	}
	return st.multiply()
}

// read takes the awaited contents from body.
func (st *stage) read(ctx context.Context, body io.Reader) error {
	sizes := st.Sizes()
	var writers errgroup.Group
	writers.SetLimit(workers)
	begun := make(map[tree.Digest]bool, len(st.awaited))
	err := tree.ReadContents(ctx, body, sizes, func(content tree.Digest, r io.Reader) error {
		entries, awaited := st.awaited[content]
		if !awaited || begun[content] {
			return nil // has turned up meanwhile
		}
		begun[content] = true
		if sizes[content] > small {
			if err := st.write(entries[0], r); err != nil {
				return err
			}
			st.arrive(entries[0])
			// The node may go away at any time; so much should not be sent again then.
			// Where there are no hard links, it will be.
			_ = os.Link(st.path(entries[0]), st.store.kept(content))
			return nil
		}
		data := bytes.NewBuffer(make([]byte, 0, sizes[content]+bytes.MinRead))
		if _, err := data.ReadFrom(r); err != nil {
			return err
		}
		writers.Go(func() error {
			if err := st.write(entries[0], data); err != nil {
				return err
			}
			st.arrive(entries[0])
			return nil
		})
		return nil
	})
	if err := errors.Join(err, writers.Wait()); err != nil {
		return err
	}
	if missing := len(st.awaited) - len(begun); missing > 0 {
		return fmt.Errorf("%d contents are missing: want all that were planned; if files here changed since, plan again", missing)
	}
	return nil
}

// keepArrived saves what arrived whole from being removed with the stage.
func (st *stage) keepArrived() error {
	var wrong []error
	for _, i := range st.arrived {
		err := os.Rename(st.path(i), st.store.kept(st.Entries[i].Content))
		if !errors.Is(err, fs.ErrNotExist) { // where it is in its place already
			wrong = append(wrong, err)
		}
	}
	return errors.Join(wrong...)
}

// dropKept removes the kept contents that a tree now has.
func (s *Store) dropKept(m tree.Manifest) error {
	kept, err := os.ReadDir(filepath.Join(s.root, keptFolder))
	if err != nil || len(kept) == 0 {
		return err
	}
	sizes := m.Sizes()
	for _, k := range kept {
		if _, ok := sizes[tree.Digest(k.Name())]; !ok {
			continue
		}
		if err := os.Remove(s.kept(tree.Digest(k.Name()))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
