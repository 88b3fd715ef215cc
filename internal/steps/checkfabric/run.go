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
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/env/podagent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// What a bandwidth below the expected one means.
const (
	warn    = "warn"
	failing = "fail"
)

// Options say which nodes are checked, and how.
type Options struct {
	// Run is the PipelineRun that the step is part of; without it a person checks.
	Run run.Flags
	// Name is the environment, unless Pods are given.
	Name string
	// ClientCerts is the folder of the environment's mounted client Secret; without it the Secret is read.
	ClientCerts string
	// Mode is tcp or rdma, "" for the environment's.
	Mode string
	// Bandwidth is warn or fail: what one below the expected one means.
	Bandwidth string
	// Compare is tcp to measure over sockets too, or "".
	Compare string
	// Timeout is the time for the check, without the comparison.
	Timeout time.Duration
	Output  step.OutputFlag
	// Pods are pods that somebody else made.
	Pods podagent.Selection
	// Agent is the file with the agent's program for them, "" to look for it.
	Agent string
	// Idle is how long their agents wait for somebody who talks to them.
	Idle time.Duration
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
	// Out gets the report; without it the report is a record of Log.
	Out io.Writer
}

// checker is one run of the step.
type checker struct {
	Deps
	Options
}

// Run checks the network, shows the report and puts it into the run's record. The report has
// no Verdict if nothing was found; it is valid with an error too.
func Run(ctx context.Context, d Deps, o Options) (fabric.Report, error) {
	if !o.Output.ForPeople() {
		d.Log = slog.New(slog.DiscardHandler)
	}
	c := &checker{d, o}
	if o.Pods.Pods != "" {
		return c.visit(ctx)
	}
	set, detach, err := nodes.Attach(ctx, d.Clients, d.Log, o.Name, o.ClientCerts, o.Run)
	if err != nil {
		return fabric.Report{}, err
	}
	defer detach()
	check := &Check{Nodes: set, Mode: o.Mode, ID: jobsOf(o.Run.UID), RunName: o.Run.Name, Bound: o.Timeout, CompareTCP: o.Compare != "", Log: d.Log}
	for node := range set {
		check.Hosts = append(check.Hosts, objects.NamesOf(o.Name).TLSName(d.Clients.Namespace, node))
	}
	report, err := check.Run(ctx)
	if report.Verdict == "" {
		return report, err
	}
	if o.Run.UID != "" {
		if err := keep(ctx, set, o.Run.UID, report); err != nil {
			d.Log.Warn(fmt.Sprintf("What was found will not be in the receipt: %v", err), "error", err)
		}
	}
	return report, c.end(report, report, err)
}

// jobsOf begins the ids of a check's jobs. A second attempt must not find the first one's.
func jobsOf(run string) string {
	return cmp.Or(run, "by-hand") + "-fabric-" + strings.ToLower(rand.Text()[:6])
}

// end shows the report, and returns the step's error. whole is what machines get.
func (c *checker) end(report fabric.Report, whole any, err error) error {
	if err := c.show(report, whole); err != nil {
		return err
	}
	return c.judged(report, err)
}

func (c *checker) show(report fabric.Report, whole any) error {
	if c.Out == nil {
		c.Log.Info(report.Summary(), slog.Any("report", whole))
		return nil
	}
	if err := c.Output.Print(c.Out, whole, report.Print); err != nil {
		return err
	}
	c.Log.Info("Fabric: " + report.Summary() + ".")
	return nil
}

// judged is the step's error.
func (c *checker) judged(report fabric.Report, err error) error {
	if err != nil {
		return err
	}
	switch report.Verdict {
	case fabric.Slow:
		if c.Bandwidth == failing {
			return fail.Advise(fail.Becausef(fail.NetworkSlow, "checking the fabric: %s", report.Message),
				"%s", cmp.Or(c.next(), "mlenv rdma shows rates, PCIe links and MTUs; --bandwidth=warn (param fabric-bandwidth) trains nevertheless"))
		}
		c.Log.Warn("The network is slow: " + report.Message)
	case fabric.NotMeasured:
		c.Log.Warn("The fabric was not measured: " + report.Message + ".")
	case fabric.Pass, fabric.WrongTransport, fabric.Broken:
		if report.Message != "" {
			c.Log.Info(report.Message + ".")
		}
	}
	return nil
}

// keep writes the report into the run's record, on the first node that takes it.
func keep(ctx context.Context, set nodes.Set, id string, report fabric.Report) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	content, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	for _, client := range set {
		if err = keepOn(ctx, client, id, content); err == nil {
			return nil
		}
	}
	return err
}

func keepOn(ctx context.Context, client *agent.Client, id string, content []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return client.WriteRecord(ctx, id, agent.FabricReport, content)
}
