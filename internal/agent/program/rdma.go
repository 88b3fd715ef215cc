// SPDX-License-Identifier: Apache-2.0

package program

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// printRDMA prints the RDMA devices of this container. With --check a fault is exit code 1.
func printRDMA(args, environ []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mlenv-agent rdma", flag.ContinueOnError)
	flags.SetOutput(stderr)
	sysRoot := addSysRoot(flags, environ)
	check := flags.Bool("check", false, "print one line, and exit with 1 where something is wrong")
	asJSON := flags.Bool("json", false, "print the facts as JSON")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *check && *asJSON {
		fmt.Fprintln(stderr, "mlenv-agent rdma: want --check, --json or neither, and no arguments")
		return 2
	}
	facts := detect(*sysRoot, environ)
	switch {
	case *check:
		line, fine := facts.Check()
		fmt.Fprintln(stdout, line)
		if !fine {
			return 1
		}
	case *asJSON:
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(facts); err != nil {
			fmt.Fprintln(stderr, "mlenv-agent:", err)
			return 1
		}
	default:
		facts.Print(stdout)
	}
	return 0
}

func addSysRoot(flags *flag.FlagSet, environ []string) *string {
	return flags.String("sys-root", rdma.SysRootOf(environ),
		"folder whose sys and dev/infiniband to read instead of those of / (default: $"+rdma.SysRootVariable+")")
}

func detect(sysRoot string, environ []string) rdma.Facts {
	return rdma.Detect(rdma.Options{Root: rdma.RootFS(sysRoot), SysRoot: sysRoot, Environ: environ, Interfaces: rdma.SystemInterfaces})
}

// executeOverRDMA becomes a command whose environment has NCCL's variables for this container, as the agent sets them for ranks.
// It runs in containers that this project did not create, knows no other node, and does not fall back to TCP.
func executeOverRDMA(args, environ []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("mlenv-agent rdma exec", flag.ContinueOnError)
	flags.SetOutput(stderr)
	sysRoot := addSysRoot(flags, environ)
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		fmt.Fprintln(stderr, "mlenv-agent rdma exec: want a command, as in: mlenv-agent rdma exec -- torchrun train.py")
		return 2
	}
	server.RaiseLimits(slog.New(slog.NewTextHandler(stderr, nil)))
	facts := detect(*sysRoot, environ)
	plan := rdma.NewPlan([]rdma.Facts{facts}, 0, rdma.Expected{}, nil)
	facts.Findings = append(facts.Findings, plan.Findings...)
	for _, finding := range facts.Findings {
		finding.Print(stderr)
	}
	if facts.Broken() {
		return 1
	}
	fmt.Fprintln(stderr, "mlenv-agent:", become(flags.Args(), apply(plan, environ, stderr)))
	return 1
}

// apply returns environ with the variables of the plan, and prints each that it sets or removes.
func apply(plan rdma.Plan, environ []string, out io.Writer) []string {
	for _, v := range plan.Variables {
		old, had := agent.Variable(environ, v.Name)
		environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool { return strings.HasPrefix(e, v.Name+"=") })
		if v.Value != "" {
			environ = append(environ, v.Name+"="+v.Value)
			fmt.Fprintf(out, "Auto-detected %s=%s: %s\n", v.Name, v.Value, v.Reason)
		}
		if had && old != v.Value {
			fmt.Fprintf(out, "The container's own %s=%s is not used.\n", v.Name, old)
		}
	}
	return environ
}
