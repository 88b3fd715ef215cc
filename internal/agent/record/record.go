// Package record names and writes the files of a job's record, the folder
// /workspace/.mlenv/runs/ID that outlives every connection and container.
package record

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Dir is the folder of one job. Nodes that share a workspace share it, so the
// names of files tell nodes and ranks apart.
type Dir string

// RankLog is what a rank printed, both streams in the order of writing.
func (d Dir) RankLog(rank int) string { return d.file("rank-%d.log", rank) }

// RankStatus is an agent.RankStatus, written by the rank's shim.
func (d Dir) RankStatus(rank int) string { return d.file("rank-%d.json", rank) }

// LauncherLog is what a node's launcher printed itself.
func (d Dir) LauncherLog(node int) string { return d.file("launcher-%d.log", node) }

// NodeStatus is an agent.JobStatus without ranks, written by the node's agent.
func (d Dir) NodeStatus(node int) string { return d.file("node-%d.json", node) }

// NCCLLogs begins the names of the logs of a node's processes of NCCL, of which
// each has one of its own.
func (d Dir) NCCLLogs(node int) string { return d.file("nccl-%d-", node) }

// Metrics is written by the training itself, JSON lines.
func (d Dir) Metrics() string { return filepath.Join(string(d), "metrics.jsonl") }

func (d Dir) file(format string, n int) string {
	return filepath.Join(string(d), fmt.Sprintf(format, n))
}

// WriteJSON replaces a file by value in one step.
func WriteJSON(path string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	return WriteFile(path, append(content, '\n'))
}

// ReadRank reads a rank's status.
func (d Dir) ReadRank(rank int) (agent.RankStatus, error) {
	var status agent.RankStatus
	return status, readJSON(d.RankStatus(rank), &status)
}

// ReadNode reads a node's part of the job.
func (d Dir) ReadNode(node int) (agent.JobStatus, error) {
	return ReadNodeFile(d.NodeStatus(node))
}

// ReadNodeFile reads a node's part of a job by the path of its file.
func ReadNodeFile(path string) (agent.JobStatus, error) {
	var status agent.JobStatus
	return status, readJSON(path, &status)
}

func readJSON(path string, value any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, value); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

// WriteFile replaces a file in one step, so that readers, on other nodes too,
// never see half of it. The folder is made where it is missing.
func WriteFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o2775); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(content)
	if err == nil {
		err = temporary.Chmod(0o664)
	}
	if closing := temporary.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		os.Remove(temporary.Name())
	}
	return err
}
