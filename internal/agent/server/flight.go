// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Variables of torch's flight recorder, which remembers the last collectives of a rank. The names without NCCL are newer: of the size
// since torch 2.8. Torch warns of the old name and reads it still, and 2.8 to 2.10 make no pipe without it.
const (
	flightSize, newFlightSize = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
	flightDump, newFlightDump = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"
	flightPipe                = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
	// Without flightOnTimeout, which is off by default in older versions, torch looks at the pipe once in minutes.
	flightOnTimeout = "TORCH_NCCL_DUMP_ON_TIMEOUT"
)

const (
	// flightEntries is how many collectives a rank remembers: torch 2.15's own default. Before, it was 0.
	flightEntries = "2000"
	// flightTime is how long dumps may take. Torch looks at the pipe every second.
	flightTime = 8 * time.Second
	// maxDump bounds a dump in the record, in bytes: each collective has the stack that entered it.
	maxDump = 64 << 20
)

//go:embed flight.py
var readFlight string

// recordFlight switches the flight recorder on, with dumps on request. Variables that the user sets stay.
func recordFlight(env map[string]string, folder string) {
	set := func(value string, names ...string) {
		for _, name := range names {
			if _, given := env[name]; given {
				return
			}
		}
		for _, name := range names {
			env[name] = value
		}
	}
	set(flightEntries, flightSize, newFlightSize)
	set("1", flightOnTimeout)
	set(filepath.Join(folder, "rank-"), flightDump, newFlightDump)
	set(filepath.Join(folder, "pipe-"), flightPipe)
}

// collectives asks the ranks for dumps, and returns the last collectives of those that answer, by rank. A rank without NCCL has no
// pipe; one whose threads are all stopped does not answer.
func (j *job) collectives(ctx context.Context, live []agent.RankStatus) map[int][]agent.Collective {
	ranks := map[string]int{}
	for _, rank := range live {
		pipe, dump := j.flightPipe+strconv.Itoa(rank.Rank)+".pipe", j.flightDump+strconv.Itoa(rank.Rank)
		if info, err := os.Lstat(pipe); err != nil || info.Mode().Type() != os.ModeNamedPipe {
			continue
		}
		_ = os.Remove(dump)                                                 // an earlier one
		writer, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0) //nolint:forbidigo // it is a FIFO
		if err != nil {
			continue
		}
		_, err = writer.WriteString("1")
		if writer.Close(); err == nil {
			ranks[dump] = rank.Rank
		}
	}
	return j.readDumps(ctx, flightTime, ranks)
}

// readDumps reads dumps, which are complete after the time, and copies them into the record. ranks are those that write them.
func (j *job) readDumps(ctx context.Context, complete time.Duration, ranks map[string]int) map[int][]agent.Collective {
	python, err := agent.FindProgram("python3", j.own.path)
	if len(ranks) == 0 || err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, complete+spyTime)
	defer cancel()
	var found map[string][]agent.Collective
	// Isolated, so that no file of the job's is imported.
	args := append([]string{"-I", "-S", "-c", readFlight, fmt.Sprint(complete.Seconds())}, slices.Sorted(maps.Keys(ranks))...)
	if err := j.runJSON(ctx, &found, python, args...); err != nil {
		j.log.Warn("Reading the dumps of torch's flight recorder failed.", "error", err)
	}
	all := map[int][]agent.Collective{}
	for dump, rank := range ranks {
		for _, group := range found[dump] {
			const few = 8
			if n := len(group.Ranks); n > few { // thousands of ranks would each list thousands
				group.Ranks, group.Size = []int{group.Ranks[0], group.Ranks[n-1]}, n
			}
			all[rank] = append(all[rank], group)
		}
		content, err := claimfile.Read(dump, maxDump)
		if err == nil {
			err = record.WriteFile(j.dir.Flight(rank), content)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			j.log.Warn("Recording a dump of torch's flight recorder failed.", "rank", rank, "error", err)
		}
		if j.scratch != "" && strings.HasPrefix(dump, j.scratch+"/") { // at the end of the job it would be old
			_ = os.Remove(dump)
		}
	}
	return all
}

// lastDumps reads those that torch wrote by itself, when a collective took too long or a peer was lost.
func (j *job) lastDumps() {
	if j.flightDump == "" {
		return
	}
	ranks := map[string]int{}
	paths, _ := filepath.Glob(j.flightDump + "*")
	for _, path := range paths {
		rank, err := strconv.Atoi(strings.TrimPrefix(path, j.flightDump))
		info, statErr := os.Lstat(path)
		if err != nil || statErr != nil || len(ranks) == agent.MaxRanksPerNode {
			continue
		}
		if info.Mode().IsRegular() && !info.ModTime().Before(j.status.Started) {
			ranks[path] = rank
		}
	}
	collectives := j.readDumps(context.Background(), time.Second, ranks)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.status.Collectives = collectives
}
