// SPDX-License-Identifier: Apache-2.0

// Package inside trains on all nodes of an environment from inside one of them, with the agents' own certificates.
package inside

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

const usage = `mlenv-agent train trains on all nodes of a kept environment, from a shell, VS Code or Jupyter on one of them.

  mlenv-agent train [--launcher=LAUNCHER] SCRIPT|-m MODULE [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]

SCRIPT is a file here, or a path in the tree of the last mlenv sync. A file outside of that tree must be on a claim that all
nodes share. Arguments before -- are variables of the ranks. Ctrl-C stops the training.
`

// outputTime bounds how long the output may take to arrive after the ranks have ended.
const outputTime = 30 * time.Second

// Main runs the command line and returns the exit code: 0 every rank exited with 0, 1 the training failed, 2 wrong usage.
func Main(args, environ []string, stdout, stderr io.Writer) int {
	spec, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "mlenv-agent train: %v\n\n%s", err, usage)
		return 2
	}
	config, err := server.ReadConfig(version.String(), environ)
	if err == nil {
		var folder string
		if folder, err = os.Getwd(); err == nil {
			ctx, stop := command.UntilHangup(context.Background())
			defer stop()
			ctx, stopSignals := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
			defer stopSignals()
			err = Train(ctx, config, folder, spec, stdout, stderr)
		}
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "mlenv-agent train:", err)
	if next := fail.NextOf(err); next != "" {
		fmt.Fprintln(stderr, "next:", next)
	}
	return 1
}

// parse reads the command line.
func parse(args []string) (spec agent.JobSpec, err error) {
	flags := flag.NewFlagSet("train", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	launcher := flags.String("launcher", string(agent.AutoLauncher), "")
	module := flags.String("m", "", "")
	if at := slices.Index(args, "--"); at >= 0 {
		args, spec.Args = args[:at], args[at+1:]
	}
	if err := flags.Parse(args); err != nil {
		return spec, err
	}
	spec.Launcher = agent.Launcher(*launcher)
	if err := spec.Launcher.Check(); err != nil {
		return spec, fmt.Errorf("--launcher: %w", err)
	}
	rest := flags.Args()
	switch {
	case *module != "":
		spec.Script = "-m " + *module
	case len(rest) == 0 || strings.Contains(rest[0], "="):
		return spec, errors.New("an argument is missing: want the training script, or -m MODULE")
	default:
		spec.Script, rest = rest[0], rest[1:]
	}
	spec.Env = map[string]string{}
	for _, entry := range rest {
		key, value, err := agent.ParseVariable(entry)
		if err != nil {
			return spec, fmt.Errorf("%w; the script's own arguments follow --", err)
		}
		spec.Env[key] = value
	}
	return spec, nil
}

// Train launches the script of spec on all nodes, shows the ranks' output, and returns how the training ended. If ctx ends, it stops the
// training. folder is where a relative path of a script is looked for first.
func Train(ctx context.Context, config server.Config, folder string, spec agent.JobSpec, stdout, stderr io.Writer) error {
	var set nodes.Set
	defer func() { set.Close() }()
	for node := range config.Nodes {
		client, err := config.PeerClient(node)
		if err != nil {
			return fmt.Errorf("reading the certificates of the agents: %w", err)
		}
		set = append(set, client)
	}
	job := jobs.Job{ID: "by-hand-" + strings.ToLower(rand.Text()[:6]), Members: set}
	if err := prepare(ctx, config, set, folder, &spec); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, jobs.Reachable)
	defer cancel()
	_, errs := job.Start(starting, jobs.SameSpec(spec))
	if err := errors.Join(errs...); err != nil {
		job.Stop(ctx, agent.Stop{Reason: "another node could not start", Grace: jobs.Grace})
		return err
	}
	fmt.Fprintf(stderr, "Launched %s with %s: %s, %s on each; job %s. Ctrl-C stops it.\n", spec.Script, spec.Launcher,
		humanize.Count(len(set), "node"), humanize.Count(spec.RanksOfNode(), "rank"), job.ID)
	return follow(ctx, job, config, spec, stdout, stderr)
}

// prepare completes the spec by what the nodes know, and refuses to train next to another training.
func prepare(ctx context.Context, config server.Config, set nodes.Set, folder string, spec *agent.JobSpec) error {
	ctx, cancel := context.WithTimeout(ctx, jobs.Reachable)
	defer cancel()
	facts, err := nodes.AskAll(ctx, set, (*agent.Client).Facts)
	if fail.ReasonOf(err) == fail.PermissionDenied {
		return fail.Advise(fail.Becausef(fail.PermissionDenied, "launching %s: the nodes of this environment take no training from each other, "+
			"because a run created it, or an older mlenv", spec.Script), "create one with mlenv up; or on your machine: mlenv train")
	} else if err != nil {
		return err
	}
	running, err := jobs.Running(ctx, set)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "launching %s: job %s runs on these nodes", spec.Script, running[0].ID),
			"wait until it ends, or stop it where it was started, or on your machine: mlenv train --replace")
	}
	mode, _ := agent.Variable(config.Environ, "MLENV_MODE")
	known := func(f agent.Facts) bool { return f.Network != nil }
	if i := slices.IndexFunc(facts, func(f agent.Facts) bool { return f.Network == nil }); i >= 0 &&
		(mode == string(agent.RDMA) || slices.ContainsFunc(facts, known)) {
		return fail.Advise(fail.Becausef(fail.RDMAUnavailable, "launching %s: node %d has a new pod, without the network settings of the others",
			spec.Script, i), "on your machine: mlenv up, which gives them to it")
	}
	spec.Nodes, spec.RanksPerNode, spec.Order = len(set), max(1, facts[0].GPUsExpected), racks.RankOrder(racks.OfNodes(facts))
	tree, err := set[config.Node].CurrentTree(ctx)
	if err != nil {
		return err
	}
	spec.Tree, spec.Script = tree.Hash, scriptOf(spec.Script, folder, config.Repository())
	if spec.Launcher != agent.AutoLauncher {
		return nil
	}
	takes, err := set[config.Node].Script(ctx, spec.Tree, spec.Script)
	if spec.Tree != "" && !filepath.IsAbs(spec.Script) && err != nil {
		return err
	}
	spec.Launcher, spec.LauncherWhy = jobs.AutoLauncher(*spec, takes, "")
	spec.NoLocalRank = takes.LocalRank == ""
	return nil
}

// scriptOf returns the script as the nodes find it: a file of the folder by its path in the tree if it is in the tree, or else by its
// absolute path. Anything else is a path in the tree already, a module, or a program.
func scriptOf(script, folder, repository string) string {
	path := script
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, script)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil || agent.Module(script) != "" {
		return script
	}
	if top, err := filepath.EvalSymlinks(repository); err == nil {
		if inTree, err := filepath.Rel(top, real); err == nil && filepath.IsLocal(inTree) {
			return inTree
		}
	}
	return path
}

// follow shows the output of the ranks until all have ended. If one fails or is lost, it stops the others.
func follow(ctx context.Context, job jobs.Job, config server.Config, spec agent.JobSpec, stdout, stderr io.Writer) error {
	const interrupted = "it was interrupted in a shell of node"
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		job.Stop(running, agent.Stop{Cause: agent.StopCancelled, Reason: fmt.Sprint(interrupted, " ", config.Node)})
		signal.Reset(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) // another signal ends this process
		fmt.Fprintln(stderr, "Stopping the training: its ranks have their time to save. Interrupt again not to wait for them.")
	})()
	of := slices.Repeat([]context.Context{running}, len(job.Members))
	var logs sync.WaitGroup
	(&jobs.Output{Out: stdout}).Follow(job, spec, of, &logs)
	var stopping sync.Once
	var mu sync.Mutex
	var lost error
	statuses := make([]agent.JobStatus, len(job.Members))
	job.Follow(running, func(e jobs.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch e.Kind {
		case jobs.Lost:
			lost = errors.Join(lost, e.Err)
		case jobs.Reported:
			statuses[e.Node] = e.Status
		case jobs.Silent: // the follower tries again
		}
		if e.Kind == jobs.Lost || failed(e.Status) {
			stopping.Do(func() {
				time.AfterFunc(jobs.Settle, func() {
					job.Stop(running, agent.Stop{Reason: "another rank failed", Grace: jobs.Grace})
				})
			})
		}
	})
	drained := make(chan struct{})
	go func() { logs.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(outputTime):
	}
	return verdict(ctx, config, spec, statuses, lost, stderr)
}

// failed reports whether a rank of the node has failed, or its launcher has ended without all ranks.
func failed(status agent.JobStatus) bool {
	return status.State != "" && status.State != agent.Running && len(status.Ranks) < status.Spec.RanksOfNode() ||
		slices.ContainsFunc(status.Ranks, func(r agent.RankStatus) bool { return !r.Ended.IsZero() && r.Exit != (agent.Exit{}) })
}

// verdict returns the error of a training that has ended, nil if all ranks have done their work.
func verdict(ctx context.Context, config server.Config, spec agent.JobSpec, statuses []agent.JobStatus, lost error,
	stderr io.Writer) error {
	_, namespace, _ := strings.Cut(strings.TrimSuffix(config.Suffix, ".svc"), ".")
	found, failing := cause.Find(statuses)
	stopped := slices.IndexFunc(statuses, func(s agent.JobStatus) bool { return s.StopCause != "" })
	unfinished := func(s agent.JobStatus) bool { return s.State != agent.Exited || failed(s) }
	record := ""
	for _, status := range statuses {
		record = cmp.Or(record, status.Record)
	}
	switch {
	case ctx.Err() != nil && slices.ContainsFunc(statuses, unfinished): // else all had ended before
		return fail.Becausef(fail.Cancelled, "training: it was interrupted")
	case stopped >= 0:
		return fail.Becausef(fail.Cancelled, "training: node %d was stopped: %s", statuses[stopped].Node, statuses[stopped].StopReason)
	case lost != nil && (!failing || !found.Known): // a rank may only have lost its peers
		return lost
	case failing:
		return found.Err(cause.Job{Environment: config.Name, Namespace: namespace, Record: record})
	case slices.ContainsFunc(statuses, failed):
		return fail.Becausef(fail.RankFailed, "training: it failed, and no rank shows why; the logs are in %s", record)
	}
	if alone := cause.Alone(statuses); alone != "" {
		fmt.Fprintf(stderr, "warning: Every rank exited with 0, but %s. Next: %s.\n", alone, cause.AloneNext)
	}
	fmt.Fprintf(stderr, "Training done: %s exited with 0. The record is %s.\n",
		humanize.Count(len(statuses)*spec.RanksOfNode(), "rank"), record)
	return nil
}
