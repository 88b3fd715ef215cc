package agent

import "github.com/ml-dev-env/ml-dev-env/internal/source/tree"

// FileListing is what mlenv-agent files list prints, JSON.
type FileListing struct {
	Manifest tree.Manifest `json:"manifest"`
	// Absent are paths at which nothing lies.
	Absent []string `json:"absent,omitempty"`
}

// FileRequest is what mlenv-agent files send reads, JSON. It answers with the missing contents
// as tree.WriteContents does.
type FileRequest struct {
	Manifest tree.Manifest `json:"manifest"`
	Missing  []tree.Digest `json:"missing"`
}

// Download is one file that mlenv-agent files download brings; it reads a list of them, JSON.
type Download struct {
	URL string `json:"url"`
	// Path is in the folder.
	Path string `json:"path"`
	// Content is the SHA-256 that it must have, "" for any.
	Content tree.Digest `json:"content,omitempty"`
}
