// Package pack reads a git pack of any size in little memory: the pack and
// whatever is large stay on disk, and objects are streamed, never held whole.
package pack

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strconv"
)

// Hash is an object's name: a SHA-1.
type Hash [sha1.Size]byte

// String is the hash in lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash reads 40 hex digits.
func ParseHash(text string) (Hash, bool) {
	var h Hash
	if len(text) != hex.EncodedLen(len(h)) {
		return Hash{}, false
	}
	_, err := hex.Decode(h[:], []byte(text))
	return h, err == nil
}

// Kind is what an object is, as a pack numbers it.
type Kind uint8

// The kinds.
const (
	Commit Kind = 1
	Tree   Kind = 2
	Blob   Kind = 3
	Tag    Kind = 4

	offsetDelta Kind = 6
	hashDelta   Kind = 7
)

func (k Kind) String() string {
	switch k {
	case Commit:
		return "commit"
	case Tree:
		return "tree"
	case Blob:
		return "blob"
	case Tag:
		return "tag"
	}
	return "kind " + strconv.Itoa(int(k))
}

// ErrMissing is an object that the pack does not have.
var ErrMissing = errors.New("not in the pack")

// none is no entry.
const none = -1

// entry is one object of the pack.
type entry struct {
	// start is the offset of the entry, data that of its zlib stream.
	start, data int64
	// size is the object's, in bytes; while the entry is an unresolved delta,
	// the delta's.
	size int64
	// base is the entry that a delta builds on, none for a whole object.
	base int32
	// child is the first delta that builds on this one, next the next one with the same base.
	child, next int32
	kind        Kind
	hash        Hash
}

// Pack is a received pack. It is not safe for concurrent use.
type Pack struct {
	file    *os.File
	scratch string
	entries []entry
	byHash  []int32
	// orphans are deltas whose base is named by a hash that was not met yet.
	orphans map[Hash][]int32
	inflate inflater
	patch   patcher
	memory  budget
	// trees are small objects that were read, for the deltas that build on them.
	trees     map[int32][]byte
	treeBytes int
}

// Receive copies a pack stream to a new file in the folder scratch, to which
// large intermediate objects go as well, and indexes it. Every object's hash is
// computed from its content. progress is told how many objects have arrived.
func Receive(ctx context.Context, stream io.Reader, scratch string, progress func(done, total int)) (*Pack, error) {
	file, err := os.CreateTemp(scratch, "pack-")
	if err != nil {
		return nil, err
	}
	p := newPack(file, scratch)
	if err := p.receive(ctx, stream, progress); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func newPack(file *os.File, scratch string) *Pack {
	return &Pack{file: file, scratch: scratch, orphans: map[Hash][]int32{}, trees: map[int32][]byte{}, memory: maxMemory}
}

func (p *Pack) receive(ctx context.Context, stream io.Reader, progress func(done, total int)) error {
	if err := p.scan(ctx, stream, progress); err != nil {
		return err
	}
	if err := p.resolve(ctx); err != nil {
		return err
	}
	p.byHash = make([]int32, len(p.entries))
	for i := range p.entries {
		p.byHash[i] = int32(i)
	}
	slices.SortFunc(p.byHash, func(a, b int32) int {
		return bytes.Compare(p.entries[a].hash[:], p.entries[b].hash[:])
	})
	return nil
}

// Close removes the pack.
func (p *Pack) Close() {
	p.file.Close()
	os.Remove(p.file.Name())
}

// Stat returns an object's kind and its size in bytes.
func (p *Pack) Stat(h Hash) (Kind, int64, error) {
	i, err := p.find(h)
	if err != nil {
		return 0, 0, err
	}
	return p.entries[i].kind, p.entries[i].size, nil
}

// Commits returns the commits whose hash in hex begins with prefix.
func (p *Pack) Commits(prefix string) []Hash {
	var found []Hash
	for _, i := range p.byHash {
		e := &p.entries[i]
		if e.kind == Commit && len(prefix) <= 2*len(e.hash) && e.hash.String()[:len(prefix)] == prefix {
			found = append(found, e.hash)
		}
	}
	return slices.Compact(found)
}

func (p *Pack) find(h Hash) (int32, error) {
	at, ok := slices.BinarySearchFunc(p.byHash, h, func(i int32, h Hash) int {
		return bytes.Compare(p.entries[i].hash[:], h[:])
	})
	if !ok {
		return none, fmt.Errorf("object %s: %w", h, ErrMissing)
	}
	return p.byHash[at], nil
}

// at returns the entry that starts at the offset.
func (p *Pack) at(start int64) (int32, bool) {
	i, ok := slices.BinarySearchFunc(p.entries, start, func(e entry, start int64) int {
		return cmp.Compare(e.start, start)
	})
	return int32(i), ok
}

// newHash begins the hash of an object of that kind and size.
func newHash(kind Kind, size int64) hash.Hash {
	h := sha1.New()
	fmt.Fprintf(h, "%s %d\x00", kind, size)
	return h
}
