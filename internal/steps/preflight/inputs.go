// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// readRun reads the PipelineRun that the step is part of, if any: its params are what later steps will use.
func (p *probe) readRun(ctx context.Context) {
	if p.Run.Name == "" {
		return
	}
	found, err := p.Clients.Tekton.TektonV1().PipelineRuns(p.Request.Namespace).Get(ctx, p.Run.Name, metav1.GetOptions{})
	if err != nil {
		p.first = append(p.first, unread("params", "pipelinerun "+p.Run.Name, err))
		return
	}
	p.own = found
}

// value returns the run's value of a param, "" without a run.
func (p *probe) value(param string) string {
	if p.own == nil {
		return ""
	}
	return launch.ValueOf(p.own, param)
}

// params checks all params of the run, also those that other steps take.
func (p *probe) params(context.Context) (checks []Check) {
	const name = "params"
	if p.own == nil {
		return nil
	}
	next := "correct them all; oc describe pipeline " + launch.Pipeline + " -n " + p.Request.Namespace + " shows what each means"
	for _, mistake := range launch.Mistakes(p.own) {
		checks = append(checks, newCheck(name, Blocked, next, "%s", oneLine(mistake.Error())).because(fail.InvalidInput))
	}
	if len(checks) == 0 {
		checks = []Check{newCheck(name, OK, "", "%s", humanize.Count(len(p.own.Spec.Params), "value"))}
	}
	return checks
}

// timeouts checks that the run lasts as long as its training may. A build may find its image built, so only build-image
// counts the build's time.
func (p *probe) timeouts(ctx context.Context) []Check {
	const name = "timeouts"
	if p.own == nil {
		return nil
	}
	needs := launch.NeedsOf(p.own)
	if needs.Training == 0 {
		return nil
	}
	own, err := run.Get(ctx, p.Clients.Tekton, p.Request.Namespace, p.Run.Name)
	if err != nil {
		return []Check{unread(name, "pipelinerun "+p.Run.Name, err)}
	}
	withBuild := needs
	needs.Build = 0
	if err = run.CheckTimeouts(own, needs, p.Clients.Now()); err == nil {
		return []Check{newCheck(name, OK, "", "the run lasts long enough for a training of %s", humanize.Duration(needs.Training))}
	}
	if p.building {
		// The advice is for the longest case.
		err = cmp.Or(run.CheckTimeouts(own, withBuild, p.Clients.Now()), err)
	}
	return []Check{blockedBy(name, err)}
}

// secrets checks those that the params name, which the Task mounts.
func (p *probe) secrets(context.Context) (checks []Check) {
	const name = "secrets"
	problems := p.Secrets.Problems
	for _, key := range p.Secrets.Variables {
		if _, _, err := agent.ParseVariable(key + "="); err != nil {
			problems = append(problems, fail.Because(fail.InvalidInput, fmt.Errorf("key of the Secret of param env-secret: %w", err)))
		}
	}
	for _, problem := range problems {
		checks = append(checks, blockedBy(name, problem))
	}
	checks = append(checks, p.foreignDefaults()...)
	if len(checks) == 0 && p.own != nil {
		checks = []Check{newCheck(name, OK, "", "those that the params name exist and have keys that the steps use")}
	}
	return checks
}

// foreignDefaults warns about Secrets of another cluster file than the run's: only the name of a param can be mounted, and its
// default comes from the file that was installed last.
func (p *probe) foreignDefaults() (checks []Check) {
	if p.own == nil {
		return nil
	}
	given := launch.Values(p.own)
	for _, secret := range []struct{ param, key, value string }{
		{"pull-secret", "image.pull_secret", p.file.Image.PullSecret}, {"notify", "notify.secret", p.file.Notify.Secret},
	} {
		used, want := p.value(secret.param), cmp.Or(secret.value, "none")
		if _, ok := given[secret.param]; ok || used == "" || used == want {
			continue
		}
		checks = append(checks, newCheck("secrets", Warning, fmt.Sprintf("--param=%s=%s", secret.param, want),
			"param %s is %s by default, from the cluster file that was installed last; %s of %s.yaml is %s", secret.param, used, secret.key,
			p.file.Cluster.Name, want))
	}
	return checks
}

// environment reports who holds the environment. It is not an error for a caller that will wait, or is not a run.
func (p *probe) environment(ctx context.Context) []Check {
	const name = "environment"
	held := p.env().Lease(p.Log)
	found, err := held.Find(ctx)
	switch {
	case fail.ReasonOf(err) == fail.EnvironmentMissing:
		return []Check{newCheck(name, OK, "", "%s is free", p.Request.Name)}
	case err != nil:
		return []Check{unread(name, "who holds it", err)}
	}
	id := p.Run.UID
	if id == "" {
		if person, err := lease.Person(ctx, p.Clients.Kube); err == nil {
			id = person.ID
		}
	}
	busy := held.ReadHolder(ctx, found)
	free := found.DeletionTimestamp != nil || busy.Holder.ID == "" || busy.Replaceable()
	status := Warning
	if p.own != nil && p.value("on-busy") != "wait" {
		status = Blocked
	}
	switch {
	case free:
		return []Check{newCheck(name, OK, "", "%s was left behind; provision releases it", p.Request.Name)}
	case busy.Holder.ID == id:
		return []Check{newCheck(name, OK, "", "%s: %s", p.Request.Name, busy.Describe())}
	}
	return []Check{newCheck(name, status, busy.NextStep(), "%s: %s", p.Request.Name, busy.Describe()).because(fail.EnvironmentBusy)}
}

// idle lists the environments of the namespace that persons keep and do not use: their GPUs are missing elsewhere. What cannot be
// read is not listed.
func (p *probe) idle(ctx context.Context) (checks []Check) {
	found, _ := env.IdleEnvironments(ctx, p.Clients)
	for _, each := range found {
		checks = append(checks, newCheck("idle environment", OK, "", "%s", each))
	}
	return checks
}

// repository asks the git server for the run's commit and the names of its files, with the credentials of sync-repo.
func (p *probe) repository(ctx context.Context) []Check {
	const name = "repository"
	url := p.value("repo-url")
	if git.IsFolder(url) || git.CheckURL(url) != nil || p.Secrets.GitUnread {
		return nil // no repository, or its credentials are a problem of their own
	}
	dir, err := claimfile.MkdirTemp(p.Scratch, "look-")
	if err != nil {
		return []Check{unread(name, "it", err)}
	}
	defer claimfile.RemoveFolder(dir)
	source := git.Source{URL: url, Revision: p.value("revision"), Auth: p.Secrets.Git}
	listing, err := git.ListFiles(ctx, slog.New(slog.DiscardHandler), dir, source)
	url = git.WithoutUser(url)
	switch {
	case ctx.Err() != nil:
		return []Check{newCheck(name, Unknown, "", "%s did not answer within %s", url, timeLimit)}
	case err != nil && fail.ReasonOf(err) == fail.Internal:
		return []Check{unread(name, url, err)}
	case err != nil:
		return []Check{blockedBy(name, err)}
	case listing.Unproven != "":
		return []Check{newCheck(name, Unknown, "", "%s can be read; whether it has the script is not known: %s", url, oneLine(listing.Unproven))}
	}
	return append([]Check{newCheck(name, OK, "", "%s has commit %s", url, listing.Commit)}, p.files(listing)...)
}

func (p *probe) files(commit git.Listing) (checks []Check) {
	for _, file := range launch.NamedFiles(p.value, commit.Has) {
		seen, submodule := commit.WhyMissing(file.Path), commit.Submodule(file.Path)
		switch {
		case seen != "":
			checks = append(checks, newCheck(file.Param, Blocked, file.NextStep(commit.Has), "%q: %s", file.Value, seen).because(file.Missing))
		case submodule != "" && p.value("submodules") == "false":
			checks = append(checks, newCheck(file.Param, Blocked, "--param=submodules=true",
				"%q: it is in the submodule %s, and param submodules is false", file.Value, submodule).because(file.Missing))
		default:
			checks = append(checks, newCheck(file.Param, OK, "", "%s is in the commit", file.Path))
		}
	}
	return checks
}
