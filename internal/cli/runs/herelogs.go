// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/spf13/cobra"
)

// showLogs copies what the run printed, or the log of one of its ranks.
func (h onMachine) showLogs(cmd *cobra.Command, o *logsOptions, r runInfo) error {
	if err := errors.Join(
		command.Want(o.task == "" || o.task == trainTask, "--task %s: a local run has one log; leave the flag out", o.task),
		command.Want(o.since == 0, "--since: the lines of a local run have no times; use --tail"),
	); err != nil {
		return command.Usage(fail.Because(fail.InvalidInput, err))
	}
	path := func() string { return filepath.Join(h.run.Dir(), printedFile) }
	if o.rank >= 0 {
		node, ranks := r.nodeOf(o.rank)
		if node < 0 && ranks > 0 {
			return o.noSuchRank(r, ranks)
		}
		path = func() string { return rankLogOf(h.run, o.rank) }
	}
	out, flush := rawLog(cmd)
	defer flush()
	if o.follow {
		return followFile(cmd.Context(), out, path, h.run.Running)
	}
	file, err := claimfile.Open(path())
	if errors.Is(err, fs.ErrNotExist) {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "reading the log of local run %s: there is none yet", r.name),
			"mlenv logs %s --follow", r.name)
	} else if err != nil {
		return err
	}
	defer file.Close()
	if o.tail > 0 {
		return lastLines(out, file, o.tail)
	}
	_, err = io.Copy(out, file)
	return err
}

// rankLogOf returns the log of a rank in its newest attempt.
func rankLogOf(of local.Run, rank int) (newest string) {
	newest = record.Dir(of.Dir()).RankLog(rank)
	for attempt := 2; ; attempt++ {
		folder := filepath.Join(of.Dir(), agent.AttemptFolder(attempt))
		if !exists(folder) {
			return newest
		}
		if path := record.Dir(folder).RankLog(rank); exists(path) {
			newest = path
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// followFile copies a file as it grows, until nothing writes to it any more or ctx ends. A file of another path continues it.
func followFile(ctx context.Context, out io.Writer, path func() string, written func() bool) error {
	var file *os.File
	defer func() {
		if file != nil {
			file.Close()
		}
	}()
	const every = 100 * time.Millisecond // a look at a file that grows
	for ticker := time.NewTicker(every); ; {
		more := written() // before the last read
		if now := path(); file == nil || file.Name() != now {
			next, err := claimfile.Open(now)
			switch {
			case err == nil && file != nil:
				_, _ = io.Copy(out, file)
				file.Close()
				file = next
			case err == nil:
				file = next
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
		}
		if file != nil {
			if _, err := io.Copy(out, file); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// lastLines writes the last lines of a file, which may be larger than the memory.
func lastLines(out io.Writer, file *os.File, count int64) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	start, size := int64(0), info.Size()
	block := make([]byte, 64<<10)
	for at := size; at > 0 && start == 0; {
		part := block[:min(at, int64(len(block)))]
		at -= int64(len(part))
		if _, err := file.ReadAt(part, at); err != nil {
			return fmt.Errorf("reading %s: %w", file.Name(), err)
		}
		for i, b := range slices.Backward(part) {
			if place := at + int64(i); b == '\n' && place < size-1 { // the file's last byte ends its last line
				if count--; count == 0 {
					start = place + 1
					break
				}
			}
		}
	}
	_, err = io.Copy(out, io.NewSectionReader(file, start, size-start))
	return err
}
