// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// index has the stamps of a tree's files: a text with a line for each.
type index struct {
	// boot is the kernel's boot id at writing.
	boot    string
	records []record
}

// record is one file of a tree as it was when its content was verified.
type record struct {
	// path is escaped as in the manifest.
	path    string
	content tree.Digest
	stamp   stamp
}

const indexHeader = "mlenv-index 1 "

func (x index) encode() []byte {
	text := []byte(indexHeader + x.boot + "\n")
	for _, r := range x.records {
		text = fmt.Appendf(text, "%s %d %d %d %o %s\n", r.content, r.stamp.size, r.stamp.modified, r.stamp.inode, r.stamp.mode, r.path)
	}
	return text
}

// index reads the index of a tree that has the suffix. It is empty if it is unreadable; then the files are read.
func (s *Store) index(hash tree.Digest, suffix string) index {
	content, err := claimfile.Read(s.sibling(hash, suffix), maxIndex)
	if err != nil {
		return index{}
	}
	known, _ := parseIndex(string(content))
	return known
}

func parseIndex(text string) (index, error) {
	first, rest, _ := strings.Cut(text, "\n")
	boot, ok := strings.CutPrefix(first, indexHeader)
	if !ok {
		return index{}, fmt.Errorf("line 1: %.40q: want %q", first, indexHeader)
	}
	x := index{boot: boot, records: make([]record, 0, strings.Count(rest, "\n"))}
	for line := range strings.Lines(rest) {
		r, err := parseRecord(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return index{}, fmt.Errorf("line %d: %w", len(x.records)+2, err)
		}
		x.records = append(x.records, r)
	}
	return x, nil
}

func parseRecord(line string) (r record, err error) {
	fields := strings.SplitN(line, " ", 6)
	if len(fields) < 6 {
		return r, fmt.Errorf("%.40q: want content, size, time, inode, mode and path", line)
	}
	size, sizeErr := strconv.ParseInt(fields[1], 10, 64)
	modified, modifiedErr := strconv.ParseInt(fields[2], 10, 64)
	inode, inodeErr := strconv.ParseUint(fields[3], 10, 64)
	mode, modeErr := strconv.ParseUint(fields[4], 8, 32)
	r = record{path: fields[5], content: tree.Digest(fields[0]), stamp: stamp{size: size, modified: modified, inode: inode,
		mode: uint32(mode)}}
	return r, errors.Join(sizeErr, modifiedErr, inodeErr, modeErr)
}
