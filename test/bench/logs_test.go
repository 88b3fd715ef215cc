// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

const (
	// logBytes is the amount written in large blocks, printedBytes the amount written with one
	// print per line, which is far slower by itself.
	logBytes     = 400_000_000
	printedBytes = 20_000_000
	lineBytes    = 100
	// direct is the file that the rank writes itself, without the agent.
	direct = agent.Workspace + "/direct.log"
)

// writeLines writes lines as a program with a buffer does: 64 KiB at a time.
const writeLines = `
import os, sys
size, line = int(sys.argv[1]), int(sys.argv[2])
text = b"".join(b"%0*d\n" % (line - 1, number) for number in range(4096 * 16))
block = 65536
done = 0
while done < size:
    at = done % (len(text) - block)
    done += os.write(1, text[at : at + min(block, size - done)])
`

// printLines prints lines as a training does, each with a write of its own.
const printLines = `
import sys
size, line = int(sys.argv[1]), int(sys.argv[2])
for number in range(size // line):
    print(f"{number:0{line - 1}d}")
`

// logTimes has rates in MB/s, one value per run.
type logTimes struct {
	write, cat, file, follow, read, exec, printed, printedFile []float64
}

// BenchmarkLogs makes a rank print, and reads its output.
func BenchmarkLogs(b *testing.B) {
	ctx, ns := b.Context(), installed(b)
	const name = "logs"
	check(b, ns.provision(ctx, name, "rwx"))
	set, err := ns.agents(ctx, []node{{name, 0}})
	check(b, err)
	defer set.Close()
	var t logTimes
	for b.Loop() {
		check(b, ns.timeLogs(ctx, set[0], node{name, 0}, &t))
	}
	t.report(b)
	check(b, ns.teardown(ctx, name))
}

func (t logTimes) report(b *testing.B) {
	table := newTable(fmt.Sprintf("logs: a rank prints %d MB in lines of %d bytes", logBytes/1_000_000, lineBytes),
		"The rank, its shim, the agent and, where it reads, this program share the cores; the volume is a folder of this machine",
		"from the rank's start to its end, Python's own start included; it writes 64 KiB at a time")
	table.add("through the agent's pipe into the record", "MB/s", t.write, aimed(t.write))
	table.add("the same program's stdout to a file", "MB/s", t.file, share(t.write, t.file))
	table.add("the same program's stdout through cat to a file", "MB/s", t.cat, share(t.write, t.cat))
	table.add("into the record while a client follows it, until the client has everything", "MB/s", t.follow, aimed(t.follow))
	table.add("a client reads it back by offset, interrupted halfway", "MB/s", t.read, aimed(t.read))
	table.add("kubectl exec cat of the same file", "MB/s", t.exec, share(t.read, t.exec))
	table.add("print(), one write per line, into the record", "MB/s", t.printed, share(t.printed, t.printedFile))
	table.add("print(), one write per line, to a file", "MB/s", t.printedFile)
	table.print(b, "logs")
}

// aimed compares the median of rates in MB/s with the aim.
func aimed(rates []float64) string {
	const aim = 200
	return fmt.Sprintf("%.1f x the aim of %d MB/s", median(rates)/aim, aim)
}

// share returns how many times as fast as the other rates ours are.
func share(ours, other []float64) string {
	return fmt.Sprintf("the agent is %.2f x as fast", median(ours)/median(other))
}

// timeLogs times all ways once.
func (ns *namespace) timeLogs(ctx context.Context, client *agent.Client, n node, t *logTimes) error {
	for _, way := range []struct {
		into    *[]float64
		bytes   int
		program string
		shell   string
	}{
		{&t.file, logBytes, writeLines, `exec python3 -c "$0" "$@" > ` + direct},
		{&t.cat, logBytes, writeLines, `python3 -c "$0" "$@" | cat > ` + direct},
		{&t.printedFile, printedBytes, printLines, `exec python3 -c "$0" "$@" > ` + direct},
		{&t.printed, printedBytes, printLines, `exec python3 -c "$0" "$@"`},
	} {
		job, err := runJob(ctx, client, printing(way.shell, way.program, way.bytes))
		if err != nil {
			return err
		}
		*way.into = append(*way.into, rate(way.bytes, rankTime(job)))
		if err := ns.discard(ctx, n, direct, job.Record); err != nil {
			return err
		}
	}
	if err := ns.timeRecord(ctx, client, n, t); err != nil {
		return err
	}
	return ns.timeFollowed(ctx, client, n, t)
}

// timeRecord times writing into the record, then reading from it.
func (ns *namespace) timeRecord(ctx context.Context, client *agent.Client, n node, t *logTimes) error {
	job, err := runJob(ctx, client, printing(`exec python3 -c "$0" "$@"`, writeLines, logBytes))
	if err != nil {
		return err
	}
	t.write = append(t.write, rate(logBytes, rankTime(job)))
	start := time.Now()
	for _, piece := range []struct{ offset, bytes int64 }{{0, logBytes / 2}, {logBytes / 2, logBytes - logBytes/2}} {
		if err := readLog(ctx, client, job.ID, piece.offset, piece.bytes); err != nil {
			return err
		}
	}
	t.read = append(t.read, rate(logBytes, time.Since(start)))
	start = time.Now()
	cat := exec.CommandContext(ctx, kubectlProgram, ns.kubectlArgs("exec", n.pod(), "--", "cat", job.Record+"/rank-0.log")...)
	if err := cat.Run(); err != nil {
		return fmt.Errorf("kubectl exec cat: %w", err)
	}
	t.exec = append(t.exec, rate(logBytes, time.Since(start)))
	return ns.discard(ctx, n, job.Record)
}

// timeFollowed times the whole path from the rank to a client that follows it.
func (ns *namespace) timeFollowed(ctx context.Context, client *agent.Client, n node, t *logTimes) error {
	id := newJob()
	if _, err := client.StartJob(ctx, id, printing(`exec python3 -c "$0" "$@"`, writeLines, logBytes)); err != nil {
		return err
	}
	var job agent.JobStatus
	var arrived time.Time
	group, together := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		job, err = waitJob(together, client, id)
		return err
	})
	group.Go(func() error {
		log, err := client.Log(together, id, agent.RankLog+"0", 0, true)
		if err != nil {
			return err
		}
		defer log.Close()
		_, err = io.CopyN(io.Discard, log, logBytes)
		arrived = time.Now()
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	t.follow = append(t.follow, rate(logBytes, arrived.Sub(job.Ranks[0].Started)))
	return ns.discard(ctx, n, job.Record)
}

// printing returns a job of one rank that a shell starts, as `shell program bytes line`.
func printing(shell, program string, bytes int) agent.JobSpec {
	return agent.JobSpec{
		Run: "bench", Launcher: agent.Command, Nodes: 1, RanksPerNode: 1, Script: "/bin/sh",
		Args: []string{"-c", shell, program, strconv.Itoa(bytes), strconv.Itoa(lineBytes)},
	}
}

func newJob() string { return "bench-" + rand.Text() }

// runJob runs a job on one node until it ends.
func runJob(ctx context.Context, client *agent.Client, spec agent.JobSpec) (agent.JobStatus, error) {
	id := newJob()
	if _, err := client.StartJob(ctx, id, spec); err != nil {
		return agent.JobStatus{}, err
	}
	return waitJob(ctx, client, id)
}

// waitJob waits until a job ends, which must succeed.
func waitJob(ctx context.Context, client *agent.Client, id string) (last agent.JobStatus, err error) {
	err = client.WatchJob(ctx, id, func(status agent.JobStatus) error { last = status; return nil })
	if err != nil {
		return last, err
	}
	if len(last.Ranks) == 0 {
		return last, fmt.Errorf("job %s started no rank: its launcher ended with %+v", id, last.Launcher)
	}
	for _, rank := range last.Ranks {
		if rank.Exit != (agent.Exit{}) {
			return last, fmt.Errorf("rank %d of job %s ended with %+v: %q", rank.Rank, id, rank.Exit, rank.Tail)
		}
	}
	return last, nil
}

func rankTime(job agent.JobStatus) time.Duration {
	return job.Ranks[0].Ended.Sub(job.Ranks[0].Started)
}

// rate returns the rate in MB/s.
func rate(bytes int, took time.Duration) float64 { return float64(bytes) / 1e6 / took.Seconds() }

func readLog(ctx context.Context, client *agent.Client, id string, offset, bytes int64) error {
	log, err := client.Log(ctx, id, agent.RankLog+"0", offset, false)
	if err != nil {
		return err
	}
	defer log.Close()
	if n, err := io.CopyN(io.Discard, log, bytes); err != nil {
		return fmt.Errorf("reading log of job %s from %d: got %d bytes, want %d: %w", id, offset, n, bytes, err)
	}
	return nil
}

// discard deletes what the round wrote, to free the disk for the next round.
func (ns *namespace) discard(ctx context.Context, n node, paths ...string) error {
	_, err := ns.kubectl(ctx, append([]string{"exec", n.pod(), "--", "rm", "-rf"}, paths...)...)
	return err
}
