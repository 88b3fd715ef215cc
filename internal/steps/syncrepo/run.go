package syncrepo

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Options say which commit is put on which environment's nodes.
type Options struct {
	// Run is the PipelineRun that the step is part of; without it a person runs it.
	Run run.Flags
	// Name is the environment.
	Name string
	// ClientCerts is the folder of the environment's mounted client Secret; without it the Secret is read.
	ClientCerts string
	// Source is the repository and its commit. With an URL that SentURL makes nothing is
	// fetched: Run waits for the folder.
	Source git.Source
	// Scratch is the folder for the fetched files, "" for a temporary one.
	Scratch string
	// Requirements is the path of a pip file in the repository, "" for none.
	Requirements        string
	RequirementsTimeout time.Duration
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
}

// Result is what the nodes have now.
type Result struct {
	Commit string
	// Tree is the hash that every node confirmed.
	Tree tree.Digest
}

// Run fetches the commit, sends it to the nodes, and switches to it.
func Run(ctx context.Context, d Deps, o Options) (Result, error) {
	log := d.Log
	set, detach, err := nodes.Attach(ctx, d.Clients, log, o.Name, o.ClientCerts, o.Run)
	if err != nil {
		return Result{}, err
	}
	defer detach()
	if IsSentURL(o.Source.URL) {
		return awaitSent(ctx, log, set, o)
	}
	dir, err := os.MkdirTemp(o.Scratch, "repository-")
	if err != nil {
		return Result{}, fmt.Errorf("making a folder for the repository: %w", err)
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	commit, err := git.Fetch(ctx, log, dir, o.Source)
	if err != nil {
		return Result{}, err
	}
	manifest, err := scan(ctx, dir)
	if err != nil {
		return Result{}, err
	}
	log.Info(fmt.Sprintf("Fetched commit %s in %.1f s: %s.", commit, time.Since(began).Seconds(), describe(manifest)))
	needs := requirements{name: o.Requirements, program: agent.Program, venvs: agent.State + "/venvs", timeout: o.RequirementsTimeout, run: o.Run.Name}
	hash, err := sender{nodes: set, log: log}.deliver(ctx, dir, manifest, needs)
	if err != nil {
		return Result{}, err
	}
	return Result{Commit: commit, Tree: hash}, nil
}

// awaitSent is Run with a folder that somebody else sends, with its requirements installed.
func awaitSent(ctx context.Context, log *slog.Logger, set nodes.Set, o Options) (Result, error) {
	of, err := readSentURL(o.Source.URL)
	if err != nil {
		return Result{}, err
	}
	limit := sendTime
	if o.Requirements != "" {
		limit += o.RequirementsTimeout
	}
	// What the sender calls it: the commit that the folder was at, and whether it has changes.
	return Result{Commit: o.Source.Revision, Tree: of.tree}, await(ctx, log, set, of, limit)
}

func describe(m tree.Manifest) string {
	files, bytes := m.Totals()
	return fmt.Sprintf("%s, %s", humanize.Count(files, "file"), humanize.Bytes(bytes))
}
