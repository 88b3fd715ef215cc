// SPDX-License-Identifier: Apache-2.0

// Package record names and writes the files of a job's record, the folder
// /workspace/.mlenv/runs/ID that outlives every connection and container.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Bounds of the files, in bytes. The tail and traceback of a rank have bounds of their own.
const (
	maxNode = 16 << 20
	maxRank = 1 << 20
)

// Dir is the folder of one job. Nodes that share a workspace share it, so the
// names of files contain the node or the rank.
type Dir string

// attempts is the beginning of the names of folders of attempts.
const attempts = "attempt-"

// Newest returns the folder of the newest attempt that has a record of the node in the folder job, or else the first attempt's.
func Newest(job string, node int) Dir {
	found, _ := filepath.Glob(filepath.Join(job, attempts+"*", filepath.Base(Dir(job).NodeStatus(node))))
	newest := 1
	for _, path := range found {
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), attempts)); err == nil {
			newest = max(newest, n)
		}
	}
	return Dir(filepath.Join(job, agent.AttemptFolder(newest)))
}

// RankLog returns the path of what a rank printed, both streams in the order of writing.
func (d Dir) RankLog(rank int) string { return d.file("rank-%d.log", rank) }

// RankStatus returns the path of an agent.RankStatus, which the rank's shim writes.
func (d Dir) RankStatus(rank int) string { return d.file("rank-%d.json", rank) }

// Errors returns the folder into which a rank's Pythons write the errors that end them, see package pylib.
func (d Dir) Errors(rank int) string { return d.file("errors-%d", rank) }

// Stacks returns the path of the stacks of a rank's threads, as text.
func (d Dir) Stacks(rank int) string { return d.file("stacks-%d.txt", rank) }

// Flight returns the path of a rank's dump of torch's flight recorder, as torch wrote it: a pickle. torch's analyser reads files of
// this name.
func (d Dir) Flight(rank int) string { return d.file("flight-%d", rank) }

// LauncherLog returns the path of the launcher's own output on a node.
func (d Dir) LauncherLog(node int) string { return d.file("launcher-%d.log", node) }

// NodeStatus returns the path of an agent.JobStatus without ranks, which the node's agent writes.
func (d Dir) NodeStatus(node int) string { return d.file("node-%d.json", node) }

// NodeOf returns the node of the status in a file of that name.
func NodeOf(name string) (node int, ok bool) {
	number, isStatus := strings.CutPrefix(strings.TrimSuffix(name, ".json"), "node-")
	node, err := strconv.Atoi(number)
	return node, isStatus && err == nil && filepath.Base(Dir("").NodeStatus(node)) == name
}

// NCCLLogs returns how the paths of NCCL's logs of a node begin; each process has one.
func (d Dir) NCCLLogs(node int) string { return d.file("nccl-%d-", node) }

// Metrics returns the path of the JSON lines that the training itself writes.
func (d Dir) Metrics() string { return filepath.Join(string(d), "metrics.jsonl") }

func (d Dir) file(format string, n int) string {
	return filepath.Join(string(d), fmt.Sprintf(format, n))
}

// WriteJSON replaces a file by value in one step.
func WriteJSON(path string, value any) error {
	content, err := encode(path, value)
	if err != nil {
		return err
	}
	return WriteFile(path, content)
}

func encode(path string, value any) ([]byte, error) {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", path, err)
	}
	return append(content, '\n'), nil
}

const (
	// rankRoom is the most that a rank's status needs, in bytes.
	rankRoom = 128 << 10
	// nodeRoom is how much longer a node's last status may be than its first one, in bytes: a guess, as it depends on NCCL's findings.
	nodeRoom = 128 << 10
)

// uses names the rooms of a rank's first and last status, with their sizes in bytes.
var uses = map[string]int{"begin": 4 << 10, "end": rankRoom}

// ReserveRank returns what writes the first and the last status of a rank. Their room was taken by BeginNode, or is taken now, as when a
// launcher starts the rank again.
func (d Dir) ReserveRank(rank int) (begin, end func(agent.RankStatus) error, err error) {
	path := d.RankStatus(rank)
	if begin, err = reserve[agent.RankStatus](path, "begin", uses["begin"]); err == nil {
		end, err = reserve[agent.RankStatus](path, "end", uses["end"])
	}
	return begin, end, err
}

// BeginNode writes a node's part of the job that is about to start. end writes the last one. Its room is taken now, and so is that of the
// statuses of the node's ranks: one rank may fill the volume before another one begins.
func (d Dir) BeginNode(status agent.JobStatus) (end func(agent.JobStatus) error, err error) {
	path, ranks := d.NodeStatus(status.Node), status.Spec.Ranks(status.Node)
	content, err := encode(path, status)
	if err != nil {
		return nil, err
	}
	// First, because a job without that room does not start, and must not be on record as running.
	var replace func(agent.JobStatus) error
	err = d.takeRooms(ranks)
	if err == nil {
		replace, err = reserve[agent.JobStatus](path, "end", len(content)+nodeRoom)
	}
	if err == nil {
		err = WriteFile(path, content)
	}
	if err != nil {
		os.Remove(claimfile.ReservationPath(path, "end"))
		d.freeRooms(ranks)
		return nil, err
	}
	return func(status agent.JobStatus) error {
		d.freeRooms(ranks) // of ranks that were killed, or never started
		return replace(status)
	}, nil
}

func (d Dir) takeRooms(ranks []int) error {
	for _, rank := range ranks {
		for use, size := range uses {
			room, err := claimfile.Reserve(d.RankStatus(rank), use, size)
			if err == nil {
				err = room.Leave()
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (d Dir) freeRooms(ranks []int) {
	for _, rank := range ranks {
		for use := range uses {
			os.Remove(claimfile.ReservationPath(d.RankStatus(rank), use))
		}
	}
}

// reserve takes room for a value. replace writes it once.
func reserve[T any](path, use string, size int) (replace func(T) error, err error) {
	room, err := claimfile.Reserve(path, use, size)
	if err != nil {
		return nil, err
	}
	return func(value T) error {
		content, err := encode(path, value)
		if err != nil {
			return err
		}
		return room.Replace(content)
	}, nil
}

// ReadRank reads a rank's status. The ranks of the job can write it too, so the caller decides which rank it is.
func (d Dir) ReadRank(rank int) (status agent.RankStatus, err error) {
	err = claimfile.ReadJSON(d.RankStatus(rank), maxRank, &status)
	return status, err
}

// ReadNode reads a node's part of the job. The name of the folder, or of the one above an attempt's, is the job's id.
func (d Dir) ReadNode(node int) (status agent.JobStatus, err error) {
	path := d.NodeStatus(node)
	if err := claimfile.ReadJSON(path, maxNode, &status); err != nil {
		return status, err
	}
	job := string(d)
	if strings.HasPrefix(filepath.Base(job), attempts) {
		job = filepath.Dir(job)
	}
	if err := status.Confine(filepath.Base(job), node); err != nil {
		return status, fmt.Errorf("reading %s: %w", path, err)
	}
	status.Record = string(d)
	return status, nil
}

// Foreign reports whether err means that a file exists and holds no record. Other errors come from the claim.
func Foreign(err error) bool {
	var system syscall.Errno
	return err != nil && !errors.As(err, &system)
}

// WriteFile replaces a file in one step, so that no reader, on this node or another, sees half of it. It creates the folder.
func WriteFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o775); err != nil {
		return err
	}
	return claimfile.Replace(path, filepath.Dir(path), content)
}
