// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Options name a commit and the environment to put it on.
type Options struct {
	// Run is the PipelineRun that the step is part of, if any.
	Run run.Flags
	// Name is the environment.
	Name string
	// ClientCerts is the folder of the environment's mounted client Secret; without it the Secret is read.
	ClientCerts string
	// Source is the repository and its commit. With a URL of SentURL, Run fetches nothing and waits for the tree.
	Source git.Source
	// Scratch is the folder for the fetched files, "" for a temporary one.
	Scratch string
	// Requirements is the path of a pip file in the repository, "" for none.
	Requirements        string
	RequirementsTimeout time.Duration
}

// Deps are Run's clients and outputs.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
}

// Result describes the tree on the nodes.
type Result struct {
	Commit string
	// Tree is the hash that every node has confirmed.
	Tree tree.Digest
}

// Run fetches the commit, sends it to the nodes, and switches to it.
func Run(ctx context.Context, d Deps, o Options) (result Result, err error) {
	log := d.Log
	kept := receipt.NewWriter(ctx, d.Clients, log, o.Run, o.Name)
	defer func() {
		kept.End(ctx, err, func(p *receipt.Entry) {
			p.Repository, p.Commit, p.Tree = receipt.RepositoryOf(o.Source.URL), result.Commit, string(result.Tree)
		})
	}()
	set, detach, err := env.Of(d.Clients, o.Name).Attach(ctx, log, o.ClientCerts, o.Run)
	if err != nil {
		return Result{}, err
	}
	defer detach()
	s := newSender(ctx, set, log)
	needs := newRequirements(o.Requirements, o.RequirementsTimeout,
		cause.Job{Run: o.Run.Name, Environment: o.Name, Namespace: d.Clients.Namespace})
	if git.IsFolder(o.Source.URL) {
		gone := func(ctx context.Context) bool { return launch.SenderGone(ctx, d.Clients, o.Run.Name) }
		if o.Run.Name == "" {
			gone = nil
		}
		return s.await(ctx, o.Source, needs, gone)
	}
	dir, err := claimfile.MkdirTemp(o.Scratch, "repository-")
	if err != nil {
		return Result{}, fmt.Errorf("creating a folder for the repository: %w", err)
	}
	defer claimfile.RemoveFolder(dir)
	began := time.Now()
	commit, err := git.Fetch(ctx, log, dir, o.Source)
	if err != nil {
		return Result{}, err
	}
	ignore, err := tree.LoadIgnore(dir)
	if err != nil {
		return Result{}, err
	}
	manifest, err := tree.Scan(ctx, dir, ignore)
	if err != nil {
		return Result{}, err
	}
	files, bytes := manifest.Totals()
	log.Info(fmt.Sprintf("Fetched commit %s in %.1f s: %s, %s.", commit, time.Since(began).Seconds(), humanize.Count(files, "file"),
		humanize.Bytes(bytes)), "event", "commit-fetched",
		"commit", commit, "seconds", time.Since(began).Seconds(), "files", files, "bytes", bytes)
	hash, err := s.deliver(ctx, dir, manifest, needs)
	if err != nil {
		return Result{}, err
	}
	return Result{Commit: commit, Tree: hash}, nil
}

// await is Run for a folder whose tree mlenv run uploads. gone returns true once that program is gone; nil if nothing shows it.
func (s sender) await(ctx context.Context, source git.Source, needs requirements, gone func(context.Context) bool) (Result, error) {
	hash, digest, err := readSentURL(source.URL)
	if err != nil {
		return Result{}, err
	}
	if err := s.awaitTree(ctx, hash, sendTime, gone); err != nil {
		return Result{}, err
	}
	needs.digest = digest
	// The revision is the commit that the folder was at, with -dirty if it had changes.
	return Result{Commit: source.Revision, Tree: hash}, s.activate(ctx, hash, needs)
}

// Folder is a folder to send to the nodes.
type Folder struct {
	Dir string
	// Ignore decides what is left out.
	Ignore *tree.Ignore
	// Requirements is the path of a pip file in the folder, "" for none, RequirementsTimeout the time to install it.
	Requirements        string
	RequirementsTimeout time.Duration
	// Environment and Namespace of the nodes are named in advice.
	Environment, Namespace string
	// Program is the agent's program, and Workspace the folder of the claim; "" means the path in a pod.
	Program, Workspace string
}

// SendFolder makes the folder the current tree of all nodes, and returns its hash, which every node has confirmed.
// Errors: UnsafeTree, SyncFailed, AgentUnreachable, RequirementsFailed.
func SendFolder(ctx context.Context, log *slog.Logger, set nodes.Set, f Folder) (tree.Digest, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newSender(ctx, set, log)
	go func() { _, _ = s.volumes() }() // the connections open during the scan
	m, err := tree.Scan(ctx, f.Dir, f.Ignore)
	if err != nil {
		return "", err
	}
	needs := newRequirements(f.Requirements, f.RequirementsTimeout, cause.Job{Environment: f.Environment, Namespace: f.Namespace})
	if f.Program != "" {
		needs.program, needs.venvs = f.Program, filepath.Join(f.Workspace, ".mlenv", "venvs")
	}
	return s.deliver(ctx, f.Dir, m, needs)
}

// Upload sends the tree of a folder to all nodes for a run whose repository is SentURL: its step sync-repo installs the
// requirements and switches to the tree. m describes the folder, which nothing changes any more. Errors: UnsafeTree,
// SyncFailed, AgentUnreachable.
func Upload(ctx context.Context, log *slog.Logger, set nodes.Set, dir string, m tree.Manifest) error {
	_, err := newSender(ctx, set, log).send(ctx, dir, m)
	return err
}

func newRequirements(name string, timeout time.Duration, job cause.Job) requirements {
	return requirements{job: job, name: name, program: agent.Program, venvs: agent.State + "/venvs", timeout: timeout}
}

// deliver sends the tree and activates it.
func (s sender) deliver(ctx context.Context, dir string, m tree.Manifest, needs requirements) (hash tree.Digest, err error) {
	if needs.name != "" {
		if needs.digest, err = RequirementsDigest(dir, needs.name, m.Hash()); err != nil {
			return "", err
		}
	}
	if hash, err = s.send(ctx, dir, m); err != nil {
		return "", err
	}
	return hash, s.activate(ctx, hash, needs)
}

// activate installs the requirements of a tree that all nodes hold, and then switches to it.
func (s sender) activate(ctx context.Context, hash tree.Digest, needs requirements) (err error) {
	venv := ""
	if needs.name != "" {
		if venv, err = s.install(ctx, needs, hash); err != nil {
			return err
		}
	}
	return s.switchTo(ctx, hash, venv)
}
