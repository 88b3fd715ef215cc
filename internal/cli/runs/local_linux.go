// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// run starts the nodes, sends them the folder, trains, and writes the receipt.
func (j localJob) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	e, err := local.Start(ctx, j.nodes)
	if err != nil {
		return command.Usage(err)
	}
	defer func() { err = errors.Join(err, e.Unlock()) }()
	out := outlive(cmd.OutOrStdout(), func() {
		tellUser(cmd.ErrOrStderr(), "Nothing reads the output any more. mlenv follows the run to its end without it.\n")
	})
	printed, err := claimfile.Append(filepath.Join(e.Dir(), printedFile))
	if err != nil {
		return errors.Join(err, e.Shutdown())
	}
	defer printed.Close()
	// A terminal that was lost takes nothing, and the file has all.
	both := io.MultiWriter(&piped{to: printed, gone: func() {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: the output is not kept any more")
	}}, &piped{to: out, gone: func() {}})
	log := command.TextLog(both)
	start := receipt.Start{Run: e.Name, RunUID: e.Name, Environment: e.Name, User: userName(), Started: time.Now().UTC()}
	journal, err := receipt.Dir(e.Dir()).BeginJournal(start)
	j.source.Dir = e.Adopt(j.source.Dir)
	if err = errors.Join(err, j.keepGiven(e.Dir())); err != nil {
		return errors.Join(err, e.Shutdown())
	}
	failure := j.train(ctx, log, both, e, journal, start.Started)
	r := finish(ctx, log, e, journal)
	if err := journal.Write(r); err != nil {
		log.Warn(err.Error())
	}
	concludeLocal(both, cmd.ErrOrStderr(), r)
	if fail.ReasonOf(failure) == fail.Cancelled && ctx.Err() != nil {
		return &command.Exit{Code: command.Interrupted, Err: failure}
	}
	if failure == nil && r.Verdict != receipt.Succeeded {
		failure = fail.Becausef(r.Reason, "%s", r.Message)
	}
	return failure
}

// userName returns the name of the user on this machine, "" if it has none.
func userName() string {
	if me, err := user.Current(); err == nil {
		return me.Username
	}
	return os.Getenv("USER")
}

// keepGiven writes the params of the command line, which may contain keys, for the user alone.
func (j localJob) keepGiven(dir string) error {
	content, err := json.Marshal(j.given)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, agent.GivenFile), content, 0o600)
}

func (j localJob) train(ctx context.Context, log *slog.Logger, out io.Writer, e *local.Environment, journal *receipt.LocalJournal,
	started time.Time) error {
	has := "without GPUs"
	if e.GPUs > 0 {
		has = "with " + humanize.Count(e.GPUs, "GPU") + " each"
	}
	log.Info(fmt.Sprintf("Run %s on this machine: %s %s.", e.Name, humanize.Count(j.nodes.Nodes, "node"), has))
	j.source.Program, j.source.Workspace = e.Program, e.Workspace
	kept := journal.Writer(ctx, log, "sync-repo")
	sent, err := syncrepo.SendFolder(ctx, log, e.Nodes, j.source)
	if err != nil && ctx.Err() != nil {
		err = fail.Becausef(fail.Cancelled, "sending the files: it was interrupted")
	}
	kept.End(ctx, err, func(p *receipt.Entry) {
		p.Repository, p.Commit, p.Tree = receipt.Folder, j.commit, string(sent)
		p.GPUs = &receipt.GPUs{Count: e.GPUs * j.nodes.Nodes, Since: started}
		if !isFolder(j.given) {
			p.Repository = receipt.RepositoryOf(strings.Join(j.given["repo-url"], ""))
		}
	})
	if err != nil {
		return err
	}
	j.training.Tree, j.training.Job, j.training.NewPort = sent, e.Name, local.FreePort
	_, err = train.Run(ctx, train.Deps{Place: e, Log: log, Out: out, Journal: journal.Writer(ctx, log, trainTask)}, j.training)
	return err
}

// finish ends the nodes, and returns the receipt of the run.
func finish(ctx context.Context, log *slog.Logger, e *local.Environment, journal *receipt.LocalJournal) receipt.Receipt {
	m, err := journal.Read()
	if err != nil {
		log.Warn(fmt.Sprintf("What the steps have noted is not in the receipt: %v", err))
	}
	r := teardown.Summarize(context.WithoutCancel(ctx), log, m, e.Nodes, agent.TCP)
	r.Teardown = "all processes of the run have ended"
	if err := e.Shutdown(); err != nil {
		r.NotReleased(err)
	}
	r.Ended = time.Now().UTC()
	r.Goodput = receipt.GoodputOf(r)
	return onWorkspace(r, e.Folder)
}

// concludeLocal prints how a run ended, except its failure.
func concludeLocal(out, problems io.Writer, r receipt.Receipt) {
	took, how := " after "+humanize.Duration(r.Ended.Sub(r.Started)), "failed"
	if r.Reason == fail.Cancelled {
		how = "was cancelled"
	}
	if r.Verdict != receipt.Succeeded {
		tellUser(problems, "Run %s %s%s.\n", r.Run, how, took)
		sayWhere(problems, r.Run, r.Checkpoint, onMachine{}.resume(runInfo{name: r.Run}))
		return
	}
	concludeSuccess(out, r.Run, r.Run, took, &r)
}
