package server

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Variables of torch's flight recorder, which remembers the last collectives of a rank. Those without NCCL are the names since
// torch 2.9; it still reads the others.
const (
	flightSize, newFlightSize = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
	flightDump, newFlightDump = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"
	flightPipe                = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
	// Without flightOnTimeout, which is off by default in older versions, torch looks at the pipe once in minutes.
	flightOnTimeout = "TORCH_NCCL_DUMP_ON_TIMEOUT"
)

const (
	// flightEntries is how many collectives a rank remembers: torch's own default since 2.6.
	flightEntries = "2000"
	// flightTime is how long dumps may take. With flightOnTimeout torch looks at the pipe every second.
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
	args := []string{"-c", readFlight, fmt.Sprint(flightTime.Seconds())}
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
			args = append(args, dump)
		}
	}
	python, err := agent.FindProgram("python3", j.path)
	if len(ranks) == 0 || err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flightTime+spyTime)
	defer cancel()
	var found map[string][]agent.Collective
	if err := runJSON(ctx, &found, python, args...); err != nil {
		j.log.Warn("Reading the dumps of torch's flight recorder failed.", "error", err)
		return nil
	}
	all := map[int][]agent.Collective{}
	for dump, groups := range found {
		all[ranks[dump]] = groups
		content, err := claimfile.Read(dump, maxDump)
		if err == nil {
			err = record.WriteFile(j.dir.Flight(ranks[dump]), content)
		}
		if err != nil {
			j.log.Warn("Recording a dump of torch's flight recorder failed.", "rank", ranks[dump], "error", err)
		}
	}
	return all
}
