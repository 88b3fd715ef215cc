// Package tree describes a folder of files by content, so that two ends can
// agree that they hold the same one and send only what differs.
package tree

// Digest is a SHA-256 in lower-case hex.
type Digest string

// Manifest is a whole tree, sorted by path.
type Manifest struct {
	Entries []Entry `json:"entries"`
}

// Entry is one file, symbolic link or folder that would be empty.
type Entry struct {
	// Path is relative, with slashes; bytes that are not printable ASCII are %XX.
	Path string `json:"path"`
	// Kind is what lies there.
	Kind Kind `json:"kind"`
	// Executable is of files.
	Executable bool `json:"executable,omitempty"`
	// Size in bytes, of files.
	Size int64 `json:"size,omitempty"`
	// Content is the SHA-256 of a file's content.
	Content Digest `json:"content,omitempty"`
	// Target is where a link leads, escaped as Path is.
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
