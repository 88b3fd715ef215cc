// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

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

// FileRequest is the input of mlenv-agent files send, JSON. The command prints what tree.WriteContents writes.
type FileRequest struct {
	Manifest tree.Manifest `json:"manifest"`
	Missing  []tree.Digest `json:"missing"`
	// From is how much of a content the reader has already, in bytes.
	From map[tree.Digest]int64 `json:"from,omitempty"`
}
