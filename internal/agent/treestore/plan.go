// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Plan reports whether the tree is complete. If not, it lists the contents that no file here has, each once in the manifest's
// order, but one that broke off first, and Receive must follow, even if nothing is missing. It reads only files with changed stamps.
// An invalid manifest is UnsafeTree.
func (s *Store) Plan(m tree.Manifest, hash tree.Digest) (present bool, missing []tree.Digest, err error) {
	if err := checkManifest(m, hash); err != nil {
		return false, nil, err
	}
	defer syncFailed(&err, "planning tree %s", hash)
	n, err := nameManifest(m)
	if err != nil {
		return false, nil, err
	}
	if present, err = s.lockedPresent(hash, n); present || err != nil {
		return present, nil, err
	}
	if err := s.replaceJSON(hash, manifestSuffix, m); err != nil {
		return false, nil, err
	}
	missing, err = s.missing(m)
	return false, missing, err
}

// Missing lists what a planned tree still misses, as Plan does.
func (s *Store) Missing(hash tree.Digest) ([]tree.Digest, error) {
	m, err := s.manifest(hash)
	if err != nil {
		return nil, fail.Becausef(fail.SyncFailed, "planning tree %s: %w", hash, err)
	}
	return s.missing(m.Manifest)
}

// CompleteTree returns the folder and the manifest of a complete tree.
func (s *Store) CompleteTree(hash tree.Digest) (dir string, m tree.Manifest, err error) {
	if dir, err = s.Path(hash); err != nil {
		return "", m, err
	}
	named, err := s.manifest(hash)
	if err != nil {
		return "", m, fail.Becausef(fail.SyncFailed, "reading the manifest of tree %s: %w", hash, err)
	}
	return dir, named.Manifest, nil
}

func (s *Store) lockedPresent(hash tree.Digest, m namedManifest) (bool, error) {
	unlock, err := s.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	known := s.index(hash, indexSuffix)
	found, err := s.inspect(hash, m, known)
	if err != nil || !found.complete() {
		return false, err
	}
	return true, s.certify(hash, m, found.stamps, known)
}

// missing lists the contents without a valid source.
func (s *Store) missing(m tree.Manifest) ([]tree.Digest, error) {
	sizes := m.Sizes()
	sources, begun, err := s.sources(sizes)
	if err != nil {
		return nil, err
	}
	needed := make([]tree.Digest, 0, len(sizes))
	for _, e := range m.Entries {
		if _, ok := sizes[e.Content]; ok {
			needed = append(needed, e.Content)
			delete(sizes, e.Content)
		}
	}
	found := make([]bool, len(needed))
	_ = inParallel(len(needed), func(i int) error { // f gives no error
		found[i] = slices.ContainsFunc(sources[needed[i]], func(from source) bool {
			path, err := from.path()
			if err != nil {
				return false
			}
			_, holds := s.has(from, path, needed[i])
			return holds
		})
		return nil
	})
	var missing []tree.Digest
	for i, content := range needed {
		if !found[i] {
			missing = append(missing, content)
		}
	}
	if i := slices.Index(missing, begun); i > 0 {
		copy(missing[1:i+1], missing[:i])
		missing[0] = begun
	}
	return missing, nil
}
