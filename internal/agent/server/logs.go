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
)

// logFile is where a log of the job lies on this node.
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

// copyLog writes a log from offset on. With follow it goes on until nothing more
// can come: the rank, or for the others the job, has ended.
//
// Whether it has ended is read before the file is, so that the last lines are
// never lost; and a slow look every second stands behind the watch, because not
// every file system tells of changes.
func copyLog(ctx context.Context, w io.Writer, flush func(), path, name string, offset int64, follow bool, j *job) error {
	var file *os.File
	defer func() {
		if file != nil {
			file.Close()
		}
	}()
	buffer := make([]byte, 256<<10)
	for {
		complete, next := true, (<-chan struct{})(nil)
		if j != nil && follow {
			next = j.grown.next()
			status, _ := j.snapshot()
			complete = j.isOver() || ended(status, name, len(j.ranks))
		}
		if file == nil {
			opened, err := os.Open(path)
			if err != nil && (!errors.Is(err, fs.ErrNotExist)) {
				return err
			}
			if err == nil {
				file = opened
				if _, err := file.Seek(offset, io.SeekStart); err != nil {
					return err
				}
			}
		}
		if file != nil {
			if n, err := io.CopyBuffer(w, struct{ io.Reader }{file}, buffer); err != nil {
				return err
			} else if n > 0 {
				flush()
			}
		}
		if complete {
			return nil
		}
		flush()
		select {
		case <-next:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ended is true where the writers of a log are: the rank, or of metrics, which
// rank 0 writes, all ranks of the node. The launcher may take longer.
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
