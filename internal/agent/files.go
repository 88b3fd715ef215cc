// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// FileListing is what mlenv-agent files list prints, JSON.
type FileListing struct {
	Manifest tree.Manifest `json:"manifest"`
	Looked
}

// Looked is what a listing has besides the files.
type Looked struct {
	// Absent are the paths that do not exist.
	Absent []string `json:"absent,omitempty"`
	// Near has the names in the innermost folder that exists on the way to an absent path, by that path. Their number is bounded.
	Near map[string]Near `json:"near,omitempty"`
	// LeftOut are special files, and links that lead out of the working directory of a job.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Near is a folder, and the names in it.
type Near struct {
	Folder string   `json:"folder"`
	Names  []string `json:"names,omitempty"`
}

// PageRequest is the input of mlenv-agent files page, JSON.
type PageRequest struct {
	Paths []string    `json:"paths"`
	From  tree.Cursor `json:"from"`
	// Seconds is how long the answer may take, about.
	Seconds float64 `json:"seconds"`
}

// FilePage is what mlenv-agent files page prints, JSON.
type FilePage struct {
	tree.Page
	Looked
}

// FileRequest is the input of mlenv-agent files send, JSON. The command prints what tree.WriteRest writes.
type FileRequest struct {
	Manifest tree.Manifest `json:"manifest"`
	Missing  []tree.Digest `json:"missing"`
	// From is how much of a content the reader has already, in bytes.
	From map[tree.Digest]int64 `json:"from,omitempty"`
}

// UploadRequest is the input of mlenv-agent files parts, JSON. For mlenv-agent files continue it is the first line of the input: the
// contents follow, as tree.WriteRest sends them.
type UploadRequest struct {
	// Manifest has missing files only. For parts it may lack small ones, for continue it also has links and empty folders.
	Manifest tree.Manifest `json:"manifest"`
	// Parts are what the folder is known to have of the contents.
	Parts map[tree.Digest]tree.Part `json:"parts,omitempty"`
	// Seconds is how long the answer of parts may take, about.
	Seconds float64 `json:"seconds,omitempty"`
}

// UploadParts is what mlenv-agent files parts prints, JSON.
type UploadParts struct {
	Parts map[tree.Digest]tree.Part `json:"parts"`
	// All is false if there is more to read of the parts.
	All bool `json:"all"`
}

// UploadResult is what mlenv-agent files continue prints, JSON.
type UploadResult struct {
	// Damaged is a content that came with another SHA-256, "" for none. Its part is deleted, and what follows it has not come.
	Damaged tree.Digest `json:"damaged,omitempty"`
}

// Download is one file for mlenv-agent files download, which reads a list of them, JSON.
type Download struct {
	URL string `json:"url"`
	// Path in the folder.
	Path string `json:"path"`
	// Content is the SHA-256 that it must have, "" for any.
	Content tree.Digest `json:"content,omitempty"`
}
