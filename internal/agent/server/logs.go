// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// logFile returns the path of a log of the job on this node.
func logFile(status agent.JobStatus, name string) (string, error) {
	dir := record.Dir(status.Record)
	switch name {
	case agent.LauncherLog:
		return dir.LauncherLog(status.Node), nil
	case agent.MetricsLog:
		return dir.Metrics(), nil
	}
	number, ok := strings.CutPrefix(name, agent.RankLog)
	rank, err := strconv.Atoi(number)
	if !ok || err != nil {
		return "", fmt.Errorf("finding log %q: want %s, %s or %sN: %w", name, agent.LauncherLog, agent.MetricsLog, agent.RankLog, fs.ErrNotExist)
	}
	return dir.RankLog(rank), nil
}

// copyLog writes a log from offset on. With follow it continues until the rank, or for other logs the job, has ended.
//
// It checks for the end before it reads the file, so that the last lines are never lost. It also reads every second, because
// not every file system reports changes.
func copyLog(ctx context.Context, w io.Writer, flush func(), path, name string, offset int64, follow bool, j *job) error {
	var file *os.File
	defer func() { file.Close() }()
	buffer := make([]byte, 256<<10)
	for {
		complete, next := true, (<-chan struct{})(nil)
		if j != nil && follow {
			next = j.grown.next()
			status, _ := j.snapshot()
			complete = j.isOver() || ended(status, name, len(j.ranks))
		}
		if file == nil {
			opened, err := claimfile.Open(path)
			if file = opened; err == nil {
				_, err = file.Seek(offset, io.SeekStart)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if file != nil {
			if _, err := io.CopyBuffer(w, struct{ io.Reader }{file}, buffer); err != nil {
				return err
			}
		}
		flush()
		if complete {
			return nil
		}
		select {
		case <-next:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ended reports whether the writers of a log have ended: the rank, or for the metrics all ranks of the node. The launcher may
// take longer.
func ended(status agent.JobStatus, name string, ranks int) bool {
	count := 0
	for _, rank := range status.Ranks {
		if rank.Ended.IsZero() {
			continue
		}
		count++
		if name == agent.RankLog+strconv.Itoa(rank.Rank) {
			return true
		}
	}
	return name == agent.MetricsLog && count == ranks
}
