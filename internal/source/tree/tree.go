// SPDX-License-Identifier: Apache-2.0

// Package tree describes a folder of files by content, so that two sides can agree that they hold the same folder
// and send only what differs.
package tree

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"net/url"
	"strings"
)

// Digest is a SHA-256 in lower-case hex.
type Digest string

// Manifest lists a whole tree, sorted by path.
type Manifest struct {
	Entries []Entry `json:"entries"`
}

// Entry is a file, a symbolic link or an empty folder.
type Entry struct {
	// Path is relative, with slashes, in the form of Escape.
	Path string `json:"path"`
	Kind Kind   `json:"kind"`
	// Executable, Size in bytes, and Content describe a file.
	Executable bool   `json:"executable,omitempty"`
	Size       int64  `json:"size,omitempty"`
	Content    Digest `json:"content,omitempty"`
	// Target of a link, in the form of Escape.
	Target string `json:"target,omitempty"`
}

// Kind of an entry.
type Kind string

// The kinds.
const (
	File   Kind = "file"
	Link   Kind = "link"
	Folder Kind = "folder"
)

// Valid reports whether d is 64 lower-case hex digits, and so is safe as a file name.
func (d Digest) Valid() bool {
	return len(d) == 2*sha256.Size && strings.Trim(string(d), "0123456789abcdef") == ""
}

// DigestOf returns the digest of what was written to a SHA-256.
func DigestOf(h hash.Hash) Digest { return Digest(hex.EncodeToString(h.Sum(nil))) }

// Hash identifies the tree: two trees have the same hash exactly if their entries are the same. It hashes a line
// per entry, in which no field can hold a tab or a newline, and so does not depend on the manifest's encoding.
func (m Manifest) Hash() Digest {
	sum := sha256.New()
	w := bufio.NewWriterSize(sum, 1<<15)
	_, _ = w.WriteString("mlenv tree 1\n") // writing to a hash never fails
	for _, e := range m.Entries {
		mode := "-"
		if e.Executable {
			mode = "x"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", e.Kind, mode, e.Size, e.Path, e.Content, e.Target)
	}
	_ = w.Flush()
	return DigestOf(sum)
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

// Sizes returns the size in bytes of each content.
func (m Manifest) Sizes() map[Digest]int64 {
	sizes := make(map[Digest]int64, len(m.Entries))
	for _, e := range m.Entries {
		if e.Kind == File {
			sizes[e.Content] = e.Size
		}
	}
	return sizes
}

// Escape writes a file name, which may hold any bytes, in printable ASCII: other bytes, and the percent sign,
// become %XX.
func Escape(name string) string {
	if plain(name) {
		return name
	}
	var escaped strings.Builder
	for i := range len(name) {
		if plain(name[i : i+1]) {
			escaped.WriteByte(name[i])
		} else {
			fmt.Fprintf(&escaped, "%%%02X", name[i])
		}
	}
	return escaped.String()
}

// plain reports whether a name is the same when escaped, as most are.
func plain(name string) bool {
	for i := range len(name) {
		if b := name[i]; b < ' ' || b > '~' || b == '%' {
			return false
		}
	}
	return true
}

// Unescape reverses Escape. It refuses everything that Escape does not write, so that a name has one spelling.
func Unescape(escaped string) (string, error) {
	if plain(escaped) {
		return escaped, nil
	}
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return "", fmt.Errorf("unescaping name %q: %w", escaped, err)
	}
	if want := Escape(name); want != escaped {
		return "", fmt.Errorf("unescaping name %q: it has another spelling: want %q", escaped, want)
	}
	return name, nil
}
