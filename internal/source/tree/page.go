// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"context"
	"crypto/sha256"
	"encoding"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Cursor is how far a listing in pages has come. The zero Cursor is its beginning.
type Cursor struct {
	// After is the path of the last entry that was listed.
	After string `json:"after,omitempty"`
	// Known are files that were read before, as a whole or in part.
	Known []Known `json:"known,omitempty"`
}

// Known is what is known of a file, as long as its size and time are these.
type Known struct {
	Path     string    `json:"path"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	// Content is the digest of the whole file, or "".
	Content Digest `json:"content,omitempty"`
	// Sum is the state of the digest after Read bytes.
	Read int64  `json:"read,omitempty"`
	Sum  []byte `json:"sum,omitempty"`
}

// Page is a part of a listing.
type Page struct {
	Entries []Entry `json:"entries"`
	// Next is nil for the last page.
	Next *Cursor `json:"next,omitempty"`
	// Files are what is known now of the large files among the entries.
	Files []Known `json:"files,omitempty"`
}

const (
	// pageGroup is the number of entries that are listed or not listed together.
	pageGroup = 64
	// LargeFile is the size of files whose digests are worth remembering, in bytes.
	LargeFile = 16 << 20
	// pageBlock is read between two questions whether it is enough, in bytes.
	pageBlock = 4 << 20
)

// ScanPage does a part of Scan, without the checks of a whole manifest: it ends soon after enough returns true, but always gets on, by at
// least a block of each file. A listing of large files would otherwise take longer than a connection may last, and begin again at the first
// byte.
func ScanPage(ctx context.Context, dir string, ignore *Ignore, from Cursor, enough func() bool) (Page, error) {
	s := scanner{dir: dir, ignore: ignore}
	err := s.folder(ctx, "")
	if err != nil {
		return Page{}, notScanned(ctx, dir, err)
	}
	slices.SortFunc(s.entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	if err := s.err("scanning " + dir); err != nil {
		return Page{}, err
	}
	rest := s.entries
	if from.After != "" {
		at, found := slices.BinarySearchFunc(rest, from.After, func(e Entry, path string) int { return strings.Compare(e.Path, path) })
		if found {
			at++
		}
		rest = rest[at:]
	}
	p := &pager{dir: dir, known: map[string]Known{}, enough: enough}
	for _, known := range from.Known {
		p.known[known.Path] = known
	}
	page := Page{Entries: []Entry{}}
	for group := range slices.Chunk(rest, pageGroup) {
		if len(page.Entries) > 0 && enough() {
			page.Next = &Cursor{After: page.Entries[len(page.Entries)-1].Path}
			break
		}
		if err := forEachFile(ctx, group, p.read); err != nil {
			return Page{}, notScanned(ctx, dir, err)
		}
		if p.unfinished {
			page.Next = &Cursor{After: from.After}
			if len(page.Entries) > 0 {
				page.Next.After = page.Entries[len(page.Entries)-1].Path
			}
			break
		}
		page.Entries = append(page.Entries, group...)
	}
	page.collect(from, p)
	return page, nil
}

// collect adds what is known for the next page and for later listings.
func (page *Page) collect(from Cursor, p *pager) {
	listed := map[string]bool{}
	for _, e := range page.Entries {
		listed[e.Path] = true
	}
	for _, known := range p.found {
		if known.Size >= LargeFile && known.Content != "" {
			page.Files = append(page.Files, known)
		}
		if page.Next != nil && !listed[known.Path] {
			page.Next.Known = append(page.Next.Known, known)
		}
		delete(p.known, known.Path)
	}
	if page.Next == nil {
		return
	}
	for _, known := range from.Known { // the files of later pages
		if _, unread := p.known[known.Path]; unread && known.Path > page.Next.After {
			page.Next.Known = append(page.Next.Known, known)
		}
	}
}

// pager reads the files of a page.
type pager struct {
	dir    string
	known  map[string]Known
	enough func() bool

	mu sync.Mutex
	// found is what is known of the files that were read; unfinished reports that it is not all of one.
	found      []Known
	unfinished bool
}

// read sets the entry of a file, or notes how far it came.
func (p *pager) read(ctx context.Context, e *Entry) error {
	name, err := Unescape(e.Path)
	if err != nil {
		return err
	}
	file, err := claimfile.Open(filepath.Join(p.dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	e.Executable = info.Mode()&0o100 != 0
	now := Known{Path: e.Path, Size: info.Size(), Modified: info.ModTime()}
	sum := sha256.New()
	if before, ok := p.known[e.Path]; ok && before.Size == now.Size && before.Modified.Equal(now.Modified) && before.resume(sum) {
		now.Content, now.Read = before.Content, before.Read
	}
	if now.Content == "" {
		if _, err = file.Seek(now.Read, io.SeekStart); err == nil {
			err = now.sum(ctx, file, sum, p.enough)
		}
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", file.Name(), err)
	}
	e.Content, e.Size = now.Content, now.Size
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found = append(p.found, now)
	p.unfinished = p.unfinished || now.Content == ""
	return nil
}

// resume sets a digest to where it was left, and reports whether it can be continued from there.
func (k Known) resume(sum hash.Hash) bool {
	if k.Content != "" {
		return k.Content.Valid()
	}
	return k.Read >= 0 && k.Read <= k.Size && sum.(encoding.BinaryUnmarshaler).UnmarshalBinary(k.Sum) == nil
}

// sum reads the file on, to its end or until it is enough.
func (k *Known) sum(ctx context.Context, file io.Reader, sum hash.Hash, enough func() bool) error {
	for {
		n, err := io.CopyN(sum, contextReader{ctx, file}, pageBlock)
		k.Read += n
		if errors.Is(err, io.EOF) {
			k.Content, k.Size, k.Sum = DigestOf(sum), k.Read, nil
			return nil
		}
		if err != nil {
			return err
		}
		if enough() {
			k.Sum, err = sum.(encoding.BinaryMarshaler).MarshalBinary()
			return err
		}
	}
}
