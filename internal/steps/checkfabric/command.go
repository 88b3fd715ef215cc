package checkfabric

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// defaultIdle is how long an agent in a foreign pod waits for somebody who talks to it.
const defaultIdle = 2 * time.Minute

// Description is what the help of the step and of mlenv check-fabric says.
const Description = `Measure collectives between the nodes of an environment, read from NCCL's own log over
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

Exit codes: 0 done, 1 failed, 2 wrong usage.`

// Command is the step check-fabric.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	cmd := &cobra.Command{
		Use:   "check-fabric",
		Short: "Prove that the network between an environment's nodes does what it should",
		Long:  Description,
		Example: `  check-fabric --name ml-dev-env
  check-fabric --compare tcp --bandwidth fail
  check-fabric --pods=h-kim-0,h-kim-1 -n nccl-test
  check-fabric --pods=app=my-training --container=trainer`,
		Args: func(_ *cobra.Command, args []string) error { return errors.Join(step.FlagsOnly(args), o.Check()) },
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	// What only Tasks give.
	o.Run.AddTo(flags)
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	bandwidth := step.NewResult(cmd, "bandwidth", "bus bandwidth of all_reduce over all ranks, in GB/s")
	transport := step.NewResult(cmd, "transport", "over what the ranks talk")
	verdict := step.NewResult(cmd, "verdict", "pass, slow, wrong-transport, broken or not-measured")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := where.Connect()
		if err != nil {
			return err
		}
		r, err := Run(cmd.Context(), Deps{Clients: clients, Log: step.Log(cmd), Out: step.ReportOutput(cmd, o.Output)}, o)
		if r.Verdict == "" {
			return err
		}
		return errors.Join(err, transport.Write(r.Transport), verdict.Write(string(r.Verdict)), bandwidth.Write(r.Bandwidth.Decimal()))
	}
	return cmd
}

// AddFlags adds the flags that the step and mlenv check-fabric share, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.Mode, "mode", "", "tcp, or rdma, where sockets fail the check (default: the environment's)")
	flags.StringVar(&o.Bandwidth, "bandwidth", warn, "what a bandwidth below the expected one means: warn or fail")
	flags.StringVar(&o.Compare, "compare", "", "tcp measures over sockets on the pod network too, in as much time again")
	flags.DurationVar(&o.Timeout, "timeout", 90*time.Second, "time for the check; what cannot be measured in it is left out")
	o.Output.AddTo(flags, step.Text, step.JSON, step.YAML)
	flags.StringVar(&o.Pods.Pods, "pods", "", "check these pods, which need not be an environment: names with commas, or a label selector")
	flags.StringVar(&o.Pods.Container, "container", "", "with --pods: the container of each (default: the one that kubectl takes)")
	flags.StringVar(&o.Agent, "agent", "", "with --pods: file with the agent's program (default: mlenv-agent beside this program, or that of the steps image)")
	flags.DurationVar(&o.Idle, "idle", defaultIdle, "with --pods: when nobody has talked to an agent for so long it ends and removes itself")
}

// Check finds every mistake of the options.
func (o *Options) Check() error {
	problems := o.checkPods()
	wrong := func(flag, value, want string) {
		problems = append(problems, fmt.Errorf("--%s %q: want %s", flag, value, want))
	}
	if o.Mode != "" && o.Mode != agent.TCP && o.Mode != agent.RDMA {
		wrong("mode", o.Mode, "tcp or rdma, or nothing for the environment's")
	}
	if o.Bandwidth != warn && o.Bandwidth != failing {
		wrong("bandwidth", o.Bandwidth, "warn or fail")
	}
	if o.Compare != "" && o.Compare != agent.TCP {
		wrong("compare", o.Compare, "tcp, or nothing")
	}
	const least = 20 * time.Second
	if o.Timeout < least {
		wrong("timeout", o.Timeout.String(), "at least "+least.String()+": torch alone takes some to start")
	}
	if err := o.Run.Check(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// checkPods finds every mistake about pods that are no environment.
func (o *Options) checkPods() (problems []error) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if o.Pods.Pods == "" {
		for _, flag := range []struct {
			name  string
			given bool
		}{{"container", o.Pods.Container != ""}, {"agent", o.Agent != ""}, {"idle", o.Idle != defaultIdle}} {
			if flag.given {
				wrong("--%s: want --pods with it", flag.name)
			}
		}
		return problems
	}
	if err := o.Pods.Check(); err != nil {
		problems = append(problems, err)
	}
	for _, flag := range []struct{ name, value, unset string }{
		{"name", o.Name, objects.DefaultName}, {"client-certs", o.ClientCerts, ""}, {"run-name", o.Run.Name, ""}, {"run-uid", o.Run.UID, ""},
	} {
		// A Task gives all of its params.
		if flag.value != flag.unset {
			wrong("--%s %q: it is of an environment, want it without --pods", flag.name, flag.value)
		}
	}
	const least = 5 * time.Second
	if o.Idle < least {
		wrong("--idle %s: want at least %s", o.Idle, least)
	}
	return problems
}
