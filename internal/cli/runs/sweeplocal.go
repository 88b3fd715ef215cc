// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// sweepHere runs the trials of a sweep on this machine, one after another. job is what they share, and tree the hash of their files, ""
// for those of a repository.
func (o *runOptions) sweepHere(cmd *cobra.Command, job localJob, name, tree string) error {
	trials := o.sweep.trials(name, job.training.Args)
	if err := differHere(name, trials, job, tree); err != nil {
		return command.Usage(err)
	}
	table := cmd.OutOrStdout()
	if !o.sweep.output.ForPeople() {
		cmd.SetOut(cmd.ErrOrStderr())
	}
	ctx, problems := cmd.Context(), cmd.ErrOrStderr()
	for i, t := range trials {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(cmd.OutOrStdout(), "== trial %d of %d, %s: %s\n", i+1, len(trials), t.name, t.text())
		begun, err := trialHere(ctx, cmd, job.of(t, name))
		switch {
		case err != nil && !begun:
			return err
		case err != nil && ctx.Err() == nil:
			say(problems, "Trial %s failed: %s: %s\n", t.name, fail.ReasonOf(err), fail.Details(err))
		}
	}
	report, err := reportHere(name, trials)
	if err == nil {
		err = o.sweep.output.PrintAs("Sweep", table, report, func(out io.Writer) error { return report.print(out, time.Now()) })
	}
	if err != nil {
		return err
	}
	return report.exit(ctx.Err() != nil)
}

// of returns the job of a trial.
func (j localJob) of(t trial, sweepName string) localJob {
	j.sweep, j.nodes.Name, j.training.Args = sweepName, t.name, t.args
	j.given = maps.Clone(j.given)
	j.given["script-args"] = t.args
	return j
}

// trialHere starts a trial, or follows the run that another mlenv has started, and does nothing if it has ended. begun is false if there
// is no run.
func trialHere(ctx context.Context, cmd *cobra.Command, job localJob) (begun bool, err error) {
	r, exists := local.Find(job.nodes.Name)
	if exists && !r.Running() {
		fmt.Fprintln(cmd.OutOrStdout(), "It has ended.")
		return true, nil
	}
	if !exists {
		err = job.run(cmd)
		r, exists = local.Find(job.nodes.Name)
	}
	if exists && r.Running() { // also if it was started since it was looked for
		fmt.Fprintf(cmd.OutOrStdout(), "Process %d trains it; following its output.\n", r.Process())
		path := filepath.Join(r.Dir(), printedFile)
		err = followFile(ctx, cmd.OutOrStdout(), func() string { return path }, r.Running)
	}
	return exists, err
}

// differHere returns why runs that exist are not trials of this sweep.
func differHere(name string, trials []trial, job localJob, tree string) error {
	var problems []error
	for _, t := range trials {
		of, exists := local.Find(t.name)
		if !exists {
			continue
		}
		different, err := job.of(t, name).different(of, tree)
		if err == nil && different != "" {
			err = fmt.Errorf("local run %s exists with another %s", t.name, different)
		}
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		err = fail.Becausef(fail.InvalidInput, "continuing sweep %s on this machine: %w\nfor a new sweep choose another --run-name", name, err)
		return fail.Advise(err, "mlenv runs --local --sweep=%s", name)
	}
	return nil
}

// different lists in what a run differs from the job of its trial, "" for nothing.
func (j localJob) different(of local.Run, tree string) (string, error) {
	r, err := localOf(of)
	if err != nil {
		return "", err
	}
	if r.sweep() != j.sweep {
		return "sweep", nil
	}
	had := map[string][]string{}
	if err := claimfile.ReadJSON(filepath.Join(of.Dir(), agent.GivenFile), longestGiven, &had); err != nil {
		return "", fail.Becausef(fail.InvalidInput, "reading the params of local run %s: %w", of.Name, err)
	}
	different := launch.DifferentParams(had, j.given)
	if sent := r.known().Tree; tree != "" && sent != "" && sent != tree {
		different = append(different, "content of its folder")
	}
	return strings.Join(different, ", "), nil
}

// reportHere describes the trials.
func reportHere(name string, trials []trial) (sweepReport, error) {
	report := sweepReport{Name: name}
	for _, t := range trials {
		var of *entry
		if run, exists := local.Find(t.name); exists {
			r, err := localOf(run)
			if err != nil {
				return report, err
			}
			of = &r
		}
		report.Trials = append(report.Trials, reportOf(t, name, "", of))
	}
	return report, nil
}

// treeOf returns the hash of the files in the URL of a folder that was packed, "" for a repository.
func treeOf(values map[string][]string) string {
	url := strings.Join(values["repo-url"], "")
	if !git.IsFolder(url) {
		return ""
	}
	hash, _, _ := strings.Cut(strings.TrimPrefix(url, git.FolderScheme), "/")
	return hash
}
