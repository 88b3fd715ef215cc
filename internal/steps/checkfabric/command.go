package checkfabric

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

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

// options are the flags of the command.
type options struct {
	kube      kube.Flags
	name      string
	certs     string
	mode      string
	bandwidth string
	compare   string
	timeout   time.Duration
	output    string
	run       run.Flags
	pods      podagent.Selection
	agent     string
	idle      time.Duration
}

// results are those of the Task.
type results struct {
	bandwidth, transport, verdict *step.Result
}

// Command is the step check-fabric.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "check-fabric",
		Short: "Prove that the network between an environment's nodes does what it should",
		Long: `Measure collectives between the nodes of an environment, read from NCCL's own log over
what the ranks talk, and compare with what the rails should give. Where ranks hang, nodes
are tried in pairs, and the node or rail at fault is named.

Ranks on TCP sockets in an environment with RDMA always fail it, as does a node that
cannot be reached. A bandwidth that is too low fails it with --bandwidth=fail.

With --pods it checks pods that somebody else made, two or more that run and have
python3 with torch. It copies its agent into a folder that can be written there, runs it as
the container's user, and removes it again, with all of its processes, whatever happens:
an agent that nobody talks to any more ends and removes itself after --idle. The mode is
rdma where all of the pods have RDMA devices that can be used. It wants the rights to get
(for a selector, list) pods, and to create pods/exec and pods/portforward.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  check-fabric --name ml-dev-env
  check-fabric --compare tcp --bandwidth fail
  check-fabric --pods=h-kim-0,h-kim-1 -n nccl-test
  check-fabric --pods=app=my-training --container=trainer`,
		Args: o.check,
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.run.AddTo(flags)
	flags.StringVar(&o.name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.certs, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	flags.StringVar(&o.mode, "mode", "", "tcp, or rdma, where sockets fail the check (default: the environment's)")
	flags.StringVar(&o.bandwidth, "bandwidth", warn, "what a bandwidth below the expected one means: warn or fail")
	flags.StringVar(&o.compare, "compare", "", "tcp measures over sockets on the pod network too, in as much time again")
	flags.DurationVar(&o.timeout, "timeout", 90*time.Second, "time for the check; what cannot be measured in it is left out")
	flags.StringVar(&o.output, "output", "text", "text for people, json for machines")
	flags.StringVar(&o.pods.Pods, "pods", "", "check these pods, which need not be an environment: names with commas, or a label selector")
	flags.StringVar(&o.pods.Container, "container", "", "with --pods: the container of each (default: the one that kubectl takes)")
	flags.StringVar(&o.agent, "agent", "", "with --pods: file with the agent's program (default: mlenv-agent beside this program, or that of the steps image)")
	flags.DurationVar(&o.idle, "idle", 2*time.Minute, "with --pods: when nobody has talked to an agent for so long it ends and removes itself")
	r := results{
		bandwidth: step.NewResult(cmd, "bandwidth", "bus bandwidth of all_reduce over all ranks, in GB/s"),
		transport: step.NewResult(cmd, "transport", "over what the ranks talk"),
		verdict:   step.NewResult(cmd, "verdict", "pass, slow, wrong-transport, broken or not-measured"),
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.execute(cmd, r) }
	return cmd
}

// check finds every mistake of the flags.
func (o *options) check(cmd *cobra.Command, args []string) error {
	problems := o.checkPods(cmd)
	wrong := func(flag, value, want string) {
		problems = append(problems, fmt.Errorf("--%s %q: want %s", flag, value, want))
	}
	if len(args) > 0 {
		problems = append(problems, fmt.Errorf("arguments %q: want none", args))
	}
	if o.mode != "" && o.mode != agent.TCP && o.mode != agent.RDMA {
		wrong("mode", o.mode, "tcp or rdma, or nothing for the environment's")
	}
	if o.bandwidth != warn && o.bandwidth != failing {
		wrong("bandwidth", o.bandwidth, "warn or fail")
	}
	if o.compare != "" && o.compare != agent.TCP {
		wrong("compare", o.compare, "tcp, or nothing")
	}
	const least = 20 * time.Second
	if o.timeout < least {
		wrong("timeout", o.timeout.String(), "at least "+least.String()+": torch alone takes some to start")
	}
	if o.output != "text" && o.output != "json" {
		wrong("output", o.output, "text or json")
	}
	if err := o.run.Check(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// execute checks, tells, and puts what was found into the record.
func (o *options) execute(cmd *cobra.Command, to results) error {
	ctx, log := cmd.Context(), step.Log(cmd)
	clients, err := o.kube.Connect()
	if err != nil {
		return err
	}
	if o.output == "json" {
		log = slog.New(slog.DiscardHandler)
	}
	if o.pods.Pods != "" {
		return o.visit(cmd, clients, log, to)
	}
	set, detach, err := nodes.Attach(ctx, clients, log, o.name, o.certs, o.run)
	if err != nil {
		return err
	}
	defer detach()
	c := &Check{Nodes: set, Mode: o.mode, ID: o.run.UID, RunName: o.run.Name, Bound: o.timeout, CompareTCP: o.compare != "", Log: log}
	c.ID = jobsOf(c.ID)
	for node := range set {
		c.Hosts = append(c.Hosts, objects.NamesOf(o.name).TLSName(clients.Namespace, node))
	}
	report, err := c.Run(ctx)
	if report.Verdict == "" {
		return err
	}
	if o.run.UID != "" {
		if err := keep(ctx, set, o.run.UID, report); err != nil {
			log.Warn(fmt.Sprintf("What was found will not be in the receipt: %v", err))
		}
	}
	return o.end(cmd, log, to, report, report, err)
}

// jobsOf begins the ids of a check's jobs. A second attempt must not find the first one's.
func jobsOf(run string) string {
	return cmp.Or(run, "by-hand") + "-fabric-" + strings.ToLower(rand.Text()[:6])
}

// end tells what was found, and returns the step's error. whole is what machines are told.
func (o *options) end(cmd *cobra.Command, log *slog.Logger, to results, report fabric.Report, whole any, err error) error {
	if err := o.tell(cmd, log, report, whole); err != nil {
		return err
	}
	writing := errors.Join(to.transport.Write(report.Transport), to.verdict.Write(string(report.Verdict)), to.bandwidth.Write(report.Bandwidth.Decimal()))
	return errors.Join(o.judged(log, report, err), writing)
}

// tell shows the report.
func (o *options) tell(cmd *cobra.Command, log *slog.Logger, report fabric.Report, whole any) error {
	if o.output == "json" {
		return step.WriteJSON(cmd.OutOrStdout(), whole)
	}
	if step.IsJSON(cmd) {
		log.Info(report.Summary(), slog.Any("report", whole))
		return nil
	}
	if err := report.Print(cmd.OutOrStdout()); err != nil {
		return err
	}
	log.Info("Fabric: " + report.Summary() + ".")
	return nil
}

// judged is the step's error.
func (o *options) judged(log *slog.Logger, report fabric.Report, err error) error {
	if err != nil {
		return err
	}
	switch report.Verdict {
	case fabric.Slow:
		if o.bandwidth == failing {
			return fail.Advise(fail.Becausef(fail.NetworkSlow, "checking the fabric: %s", report.Message),
				"%s", cmp.Or(o.next(), "mlenv rdma shows rates, PCIe links and MTUs; --bandwidth=warn (param fabric-bandwidth) trains nevertheless"))
		}
		log.Warn("The network is slow: " + report.Message)
	case fabric.NotMeasured:
		log.Warn("The fabric was not measured: " + report.Message + ".")
	case fabric.Pass, fabric.WrongTransport, fabric.Broken:
		if report.Message != "" {
			log.Info(report.Message + ".")
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
