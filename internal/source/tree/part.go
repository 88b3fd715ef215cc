// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"context"
	"crypto/sha256"
	"encoding"
	"errors"
	"fmt"
	"io"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Part describes the first bytes of a content that a folder has, for another program.
type Part struct {
	Size int64 `json:"size"`
	// Sum is the state of the SHA-256 after these bytes.
	Sum []byte `json:"sum"`
}

// begun is Begun of the part. The zero Part, and one whose state is unreadable, has no bytes.
func (p Part) begun() Begun {
	sum := sha256.New()
	if p.Size <= 0 || sum.(encoding.BinaryUnmarshaler).UnmarshalBinary(p.Sum) != nil {
		return Begun{Sum: sha256.New()}
	}
	return Begun{Size: p.Size, Sum: sum}
}

// Parts describes what an earlier Landing left of the missing contents. It reads only the bytes after those that known has. It ends soon
// after enough returns true, but always gets on by at least a block; the caller then calls it again with the result, until all is true.
func (l *Landing) Parts(ctx context.Context, known map[Digest]Part, enough func() bool) (parts map[Digest]Part, all bool, err error) {
	parts, all = map[Digest]Part{}, true
	for _, digest := range l.order {
		if !all { // the next call looks whether it is still there
			if part, ok := known[digest]; ok {
				parts[digest] = part
			}
			continue
		}
		var part Begun
		if part, all, err = l.readPart(ctx, digest, known[digest], enough); err != nil {
			return nil, false, err
		}
		if part.Size == 0 {
			continue
		}
		state, err := part.Sum.(encoding.BinaryMarshaler).MarshalBinary()
		if err != nil {
			return nil, false, err
		}
		parts[digest] = Part{Size: part.Size, Sum: state}
	}
	return parts, all, nil
}

// ContinueAt is Continue with parts that Parts has described, which it does not read again. A content without a part begins anew.
func (l *Landing) ContinueAt(parts map[Digest]Part) {
	l.continues = true
	for digest, part := range parts {
		if l.places[digest] != nil {
			l.begun[digest] = part.begun()
		}
	}
}

// readPart reads what an earlier Landing has of a content, after the bytes that are known, to its end or until it is enough.
func (l *Landing) readPart(ctx context.Context, digest Digest, known Part, enough func() bool) (part Begun, all bool, err error) {
	partial, err := l.partial(digest)
	if err != nil {
		return part, false, err
	}
	file, err := claimfile.OpenIn(l.root, partial)
	if err != nil {
		return part, true, nil // there is none, or something else in its place, which Put reports
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return part, false, err
	}
	size := min(info.Size(), l.places[digest][0].Size)
	if part = known.begun(); part.Size > size {
		part = Part{}.begun()
	}
	if _, err := file.Seek(part.Size, io.SeekStart); err != nil {
		return part, false, err
	}
	for part.Size < size {
		n, err := io.CopyN(part.Sum, contextReader{ctx, file}, min(pageBlock, size-part.Size))
		part.Size += n
		if errors.Is(err, io.EOF) {
			return part, true, nil
		}
		if err != nil {
			return part, false, fmt.Errorf("reading what came of a file before: %w", err)
		}
		if enough() {
			return part, part.Size == size, nil
		}
	}
	return part, true, nil
}
