package tree

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"
)

// Valid says whether d is 64 lower-case hex digits, and so can be a file's name.
func (d Digest) Valid() bool {
	return len(d) == 2*sha256.Size && strings.Trim(string(d), "0123456789abcdef") == ""
}

// digestOf is what h has summed.
func digestOf(h hash.Hash) Digest { return Digest(hex.EncodeToString(h.Sum(nil))) }

// Hash identifies the tree: equal for two trees exactly if their entries are.
// It depends on no encoding of the manifest. A line is hashed for each entry, and
// no field can hold a tab or a newline.
func (m Manifest) Hash() Digest {
	sum := sha256.New()
	w := bufio.NewWriterSize(sum, 1<<15)
	write := func(fields ...string) {
		for i, field := range fields {
			if i > 0 {
				_ = w.WriteByte('\t')
			}
			_, _ = w.WriteString(field) // a hash takes everything
		}
		_ = w.WriteByte('\n')
	}
	write("mlenv tree 1")
	for _, e := range m.Entries {
		mode := "-"
		if e.Executable {
			mode = "x"
		}
		write(string(e.Kind), mode, strconv.FormatInt(e.Size, 10), e.Path, string(e.Content), e.Target)
	}
	_ = w.Flush()
	return digestOf(sum)
}

// Totals counts the files and adds up their sizes in bytes.
func (m Manifest) Totals() (files int, bytes int64) {
	for _, e := range m.Entries {
		if e.Kind == File {
			files++
			bytes += e.Size
		}
	}
	return files, bytes
}

// Sizes in bytes of the contents, each content once.
func (m Manifest) Sizes() map[Digest]int64 {
	sizes := make(map[Digest]int64, len(m.Entries))
	for _, e := range m.Entries {
		if e.Kind == File {
			sizes[e.Content] = e.Size
		}
	}
	return sizes
}
