// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// writeProgram is perftest's program that writes from one host's memory into another's.
const writeProgram = "ib_write_bw"

// measureHosts measures RDMA between the memories of hosts, rail by rail, between the pairs of the first round at once. It needs
// neither torch nor GPUs. An image without the program, a failure and missing time are logged and nothing more: NCCL decides
// whether RDMA works.
func (c *Check) measureHosts(ctx context.Context, rails []rail) error {
	if c.Quick || c.settings.Mode != agent.RDMA || len(c.Nodes) < 2 {
		return nil
	}
	pairs := fabric.Rounds(len(c.Nodes))[0]
	const least, most = 5 * time.Second, 10 * time.Second // the time for one of ib_write_bw's measurements
	for k := range rails {
		bound := min(most, c.shareOfTimeLeft(0.9))
		if bound < least {
			c.Log.Info("There is no time left to measure RDMA between host memories on all rails.")
			return nil
		}
		port := firstPort + c.jobs
		c.jobs++
		measured, errs := make([]fabric.Measurement, len(pairs)), make([]error, len(pairs))
		var group sync.WaitGroup
		for i, pair := range pairs {
			w := write{check: c, id: fmt.Sprintf("%s-host-%d-%s", c.ID, k, pair), pair: pair, rail: rails[k], port: port, bound: bound}
			group.Go(func() { measured[i], errs[i] = w.do(ctx) })
		}
		group.Wait()
		if err := ctx.Err(); err != nil {
			return err
		}
		for i, err := range errs {
			if fail.ReasonOf(err) == fail.ScriptNotFound {
				c.Log.Info("RDMA between host memories is not measured: the training image has no " + writeProgram + " (package perftest).")
				return nil
			}
			if err != nil {
				c.Log.Warn(fmt.Sprintf("RDMA between the memories of %s was not measured on rail %s: %v.", c.nodeNames(pairs[i][:]),
					rails[k].report, err))
				continue
			}
			measured[i].Rail = k
			c.report.Measurements = append(c.report.Measurements, measured[i])
		}
	}
	return nil
}

// write is one run of writeProgram: the pair's first node writes into the memory of the second one.
type write struct {
	check *Check
	id    string
	pair  fabric.Pair
	rail  rail
	// port is where the two programs exchange addresses, by TCP on the pod network: a rail need not carry IP.
	port  int
	bound time.Duration
}

func (w write) do(ctx context.Context) (fabric.Measurement, error) {
	ctx, cancel := context.WithTimeout(ctx, w.bound)
	defer cancel()
	server := w.job(w.pair[1], "server")
	_, errs := server.Start(ctx, jobs.SameSpec(w.spec(w.pair[1])))
	if err := errors.Join(errs...); err != nil {
		return fabric.Measurement{}, err
	}
	defer server.Stop(ctx, agent.Stop{Reason: "all is measured", Grace: grace})
	for attempt := 1; ; attempt++ {
		client, spec := w.job(w.pair[0], strconv.Itoa(attempt)), w.spec(w.pair[0], w.check.Hosts[w.pair[1]])
		last, err := client.Run(ctx, spec, agent.Stop{Reason: "no time is left", Grace: grace})
		if ctx.Err() != nil {
			return fabric.Measurement{}, errors.New("there is no result in time")
		} else if err != nil {
			return fabric.Measurement{}, err
		}
		output := linesOf(last[0])
		if m, ok := parseWrite(output); ok {
			m.Pair = w.pair
			return m, nil
		}
		if slices.ContainsFunc(output, func(line string) bool { return strings.Contains(line, "Couldn't connect to") }) {
			// The client gives up at once. Either the server does not listen yet, or it has failed.
			status, err := server.Members[0].Job(ctx, server.ID)
			if err != nil {
				return fabric.Measurement{}, err
			}
			if status.State == agent.Running {
				time.Sleep(300 * time.Millisecond)
				continue
			}
			output = linesOf(status)
		}
		return fabric.Measurement{}, fmt.Errorf("%s ended without a result: %s", writeProgram, strings.Join(output[max(0, len(output)-3):], "; "))
	}
}

// job returns the job that runs the program on a node.
func (w write) job(node int, name string) jobs.Job {
	return jobs.Job{ID: w.id + "-" + name, Members: w.check.Nodes[node : node+1]}
}

// spec returns the spec of the program as the server, or as the client of a host.
func (w write) spec(node int, host ...string) agent.JobSpec {
	port, expected := w.rail.ports[node], w.check.settings.Expected
	args := []string{"-d", port.Device.Name, "-i", strconv.Itoa(port.Port.Number), "-F", "--report_gbits", "-D", "1", "-p",
		strconv.Itoa(w.port)}
	if port.Port.GIDIndex >= 0 {
		args = append(args, "-x", strconv.Itoa(port.Port.GIDIndex))
	}
	if expected.TrafficClass != "" {
		args = append(args, "--tclass="+expected.TrafficClass)
	}
	if expected.ServiceLevel != "" {
		args = append(args, "-S", expected.ServiceLevel)
	}
	return agent.JobSpec{
		Run: w.check.RunName, Launcher: agent.Command, Script: writeProgram, Args: append(args, host...),
		Nodes: w.check.Nodes[node].Node() + 1, RanksPerNode: 1, Deadline: time.Now().Add(w.bound), Grace: grace,
	}
}

// linesOf returns the last lines that a job of one process has printed.
func linesOf(status agent.JobStatus) []string {
	if len(status.Ranks) == 0 {
		return nil
	}
	return status.Ranks[0].Tail
}

// parseWrite reads the program's last row of figures: message size in bytes, iterations, peak and average in Gb/s, messages per second.
func parseWrite(lines []string) (m fabric.Measurement, ok bool) {
	const columns, iterations, average = 5, 1, 3
	for _, line := range slices.Backward(lines) {
		var row []float64
		for _, field := range strings.Fields(line) {
			if number, err := strconv.ParseFloat(field, 64); err == nil {
				row = append(row, number)
			}
		}
		if len(row) != columns || len(strings.Fields(line)) != columns || row[0] < 1 || row[average] <= 0 {
			continue
		}
		nanoseconds := row[0] * 8 / row[average]
		return fabric.Measurement{
			Operation: fabric.HostRDMA, Scope: fabric.ByRail, Bytes: agent.Bytes(row[0]), Ranks: 2, Time: time.Duration(nanoseconds),
			Iterations: int(max(0, min(row[iterations], 1e12))),
		}, nanoseconds >= 1 && nanoseconds < 1e12
	}
	return m, false
}
