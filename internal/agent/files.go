package agent

import "github.com/ml-dev-env/ml-dev-env/internal/tree"

// FilesFound is what mlenv-agent files list prints, JSON.
type FilesFound struct {
	Manifest tree.Manifest `json:"manifest"`
	// Absent are paths at which nothing lies.
	Absent []string `json:"absent,omitempty"`
}

// FilesWanted is what mlenv-agent files send reads, JSON. It answers with the missing contents
// as tree.WriteContents does.
type FilesWanted struct {
	Manifest tree.Manifest `json:"manifest"`
	Missing  []tree.Digest `json:"missing"`
}
