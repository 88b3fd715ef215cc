// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// The effects of a bandwidth below the expected one.
const (
	warn    = "warn"
	failing = "fail"
)

// quickNodes is how many nodes a run has at most whose network is measured in short first.
const quickNodes = 4

// Options select the nodes, and how they are checked.
type Options struct {
	// Run is the PipelineRun that the step is part of; without it a person checks.
	Run run.Flags
	// Name of the environment.
	Name string
	// ClientCerts is the folder of the environment's mounted client Secret; without it the Secret is read.
	ClientCerts string
	// Mode is tcp or rdma, empty for the environment's.
	Mode agent.Mode
	// Bandwidth is warn or fail: the effect of one below the expected one.
	Bandwidth param.Effect
	// Timeout is the time for the check.
	Timeout time.Duration
	Output  command.OutputFlag
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
	// Out receives the report; without it the report is a record of Log.
	Out io.Writer
}

type checker struct {
	Deps
	Options
}

// Run checks the network, prints the report and puts it into the run's record. The report has
// no Verdict if nothing was found. It is valid even with an error.
func Run(ctx context.Context, d Deps, o Options) (fabric.Report, error) {
	if !o.Output.ForPeople() {
		d.Log = slog.New(slog.DiscardHandler)
	}
	c := &checker{d, o}
	kept := receipt.NewWriter(ctx, d.Clients, d.Log, o.Run, o.Name)
	report, err := c.examine(ctx)
	kept.End(ctx, err, nil)
	return report, err
}

// examine checks the nodes of an environment.
func (c *checker) examine(ctx context.Context) (fabric.Report, error) {
	d, o := c.Deps, c.Options
	e := env.Of(d.Clients, o.Name)
	set, detach, err := e.Attach(ctx, d.Log, o.ClientCerts, o.Run)
	if err != nil {
		return fabric.Report{}, err
	}
	defer detach()
	check := &Check{Nodes: set, Mode: o.Mode, ID: JobsOf(o.Run.UID), RunName: o.Run.Name, Bound: o.Timeout, Log: d.Log}
	check.Quick = o.Run.UID != "" && len(set) <= quickNodes && o.Bandwidth == warn
	for node := range set {
		check.Hosts = append(check.Hosts, e.TLSName(node))
	}
	report, err := check.Run(ctx)
	if report.Verdict == "" {
		return report, err
	}
	if o.Run.UID != "" {
		if err := keep(ctx, set, o.Run.UID, report); err != nil {
			d.Log.Warn(fmt.Sprintf("The receipt will not have the report: %v", err))
		}
	}
	return report, c.end(report, err)
}

// JobsOf returns the prefix of the ids of a check's jobs. A second attempt must not find the first one's jobs.
func JobsOf(uid string) string {
	return cmp.Or(uid, "by-hand") + "-fabric-" + strings.ToLower(rand.Text()[:6])
}

// end prints the report, and returns the step's error.
func (c *checker) end(report fabric.Report, err error) error {
	if c.Out == nil {
		c.Log.Info(report.Summary(), "event", "fabric", slog.Any("report", report))
	} else {
		if err := c.Output.Print(c.Out, report, report.Print); err != nil {
			return err
		}
		c.Log.Info("Fabric: "+report.Summary()+".", "event", "fabric", "verdict", report.Verdict, "bytesPerSecond", report.Bandwidth)
	}
	if err != nil {
		return err
	}
	return c.judge(report)
}

func (c *checker) judge(report fabric.Report) error {
	switch report.Verdict {
	case fabric.Slow:
		if c.Bandwidth == failing {
			without := ""
			if exclusion := report.Exclusion(); exclusion != "" {
				without = ", param " + exclusion + " without the slow node"
			}
			if !report.SlowNetwork() {
				return fail.Advise(fail.Becausef(fail.DeviceSlow, "measuring the devices: %s", report.Message),
					"mlenv shell %d -- nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER shows why a GPU is slow; "+
						"--fabric-bandwidth=warn trains anyway%s", report.SlowDevices[0].Node, without)
			}
			return fail.Advise(fail.Becausef(fail.NetworkSlow, "checking the fabric: %s", report.Message),
				"mlenv rdma shows rates, PCIe links and MTUs; --fabric-bandwidth=warn trains anyway%s", without)
		}
		what := "The network is slow: "
		if !report.SlowNetwork() {
			what = "One slow device slows all ranks: "
		}
		c.Log.Warn(what + report.Message)
	case fabric.NotMeasured:
		c.Log.Warn("The fabric was not measured: " + report.Message + ".")
	case fabric.Pass, fabric.WrongTransport, fabric.Broken:
		switch {
		case report.Message == "":
		case report.Verdict == fabric.Pass && report.Mode == agent.RDMA: // RDMA is not proven
			c.Log.Warn(report.Message + ".")
		default:
			c.Log.Info(report.Message + ".")
		}
	}
	return nil
}

// keep writes the report into the run's record, on the first node that accepts it.
func keep(ctx context.Context, set nodes.Set, id string, report fabric.Report) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	content, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	for _, client := range set {
		trying, stop := context.WithTimeout(ctx, 3*time.Second)
		err = client.WriteRecord(trying, id, agent.FabricReport, content)
		stop()
		if err == nil {
			return nil
		}
	}
	return err
}
