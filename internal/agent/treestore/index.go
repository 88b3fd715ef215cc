package treestore

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// index is what is known of a tree's files: a text, one line each, quick to read.
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
	text := make([]byte, 0, 64+len(x.records)*192)
	text = append(text, indexHeader+x.boot+"\n"...)
	for _, r := range x.records {
		text = append(text, r.content...)
		text = strconv.AppendInt(append(text, ' '), r.stamp.size, 10)
		text = strconv.AppendInt(append(text, ' '), r.stamp.modified, 10)
		text = strconv.AppendUint(append(text, ' '), r.stamp.inode, 10)
		text = strconv.AppendUint(append(text, ' '), uint64(r.stamp.mode), 8)
		text = append(append(append(text, ' '), r.path...), '\n')
	}
	return text
}

// index is a tree's, empty if there is none that can be read: then its files are.
func (s *Store) index(hash tree.Digest) index {
	known, err := readIndex(s.sibling(hash, indexSuffix))
	if err != nil {
		return index{}
	}
	return known
}

func readIndex(path string) (index, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return index{}, err
	}
	x, err := parseIndex(string(content))
	if err != nil {
		return index{}, fmt.Errorf("reading %s: %w", path, err)
	}
	return x, nil
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
	var fields [5]string
	rest := line
	for i := range fields {
		var ok bool
		if fields[i], rest, ok = strings.Cut(rest, " "); !ok {
			return r, fmt.Errorf("%.40q: want content, size, time, inode, mode and path", line)
		}
	}
	size, sizeErr := strconv.ParseInt(fields[1], 10, 64)
	modified, modifiedErr := strconv.ParseInt(fields[2], 10, 64)
	inode, inodeErr := strconv.ParseUint(fields[3], 10, 64)
	mode, modeErr := strconv.ParseUint(fields[4], 8, 32)
	if err := errors.Join(sizeErr, modifiedErr, inodeErr, modeErr); err != nil {
		return r, err
	}
	r = record{path: rest, content: tree.Digest(fields[0]), stamp: stamp{size: size, modified: modified, inode: inode, mode: uint32(mode)}}
	return r, nil
}
