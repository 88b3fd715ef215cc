package syncrepo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// options are the flags of the command.
type options struct {
	kube         kube.Flags
	run          run.Flags
	name         string
	certs        string
	source       git.Source
	authDir      string
	caFile       string
	scratch      string
	requirements string
	pipTimeout   time.Duration
}

// Command is the step sync-repo.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "sync-repo --repo-url URL",
		Short: "Put one commit of a git repository on every node of an environment",
		Long: `Put one commit of a git repository on every node of an environment.

The nodes get what they do not have yet, all at once, and switch to the new tree
when every one of them holds it whole; where they share storage it is sent once.
What .mlenvignore names is left out. Nothing else on the nodes is touched.`,
		Example: `  sync-repo --repo-url https://github.com/example/model --revision v1.2
  sync-repo --repo-url git@github.com:example/model.git --auth-dir /etc/mlenv/git --requirements requirements.txt`,
		Args: func(_ *cobra.Command, args []string) error {
			var problems []error
			if len(args) > 0 {
				problems = append(problems, fmt.Errorf("argument %q: want flags only", args[0]))
			}
			if o.source.URL == "" {
				problems = append(problems, errors.New("--repo-url is missing: want a git repository, as in https://github.com/example/model"))
			} else if IsSentURL(o.source.URL) {
				if of, err := readSentURL(o.source.URL); err != nil {
					problems = append(problems, err)
				} else if (o.requirements != "") != (of.requirements != "") {
					problems = append(problems, fmt.Errorf("--requirements %q: want them where --repo-url %s names them, and there alone", o.requirements, o.source.URL))
				}
			} else if err := git.CheckURL(o.source.URL); err != nil {
				problems = append(problems, err)
			}
			if filepath.IsAbs(o.requirements) {
				problems = append(problems, fmt.Errorf("--requirements %q: want a path in the repository", o.requirements))
			}
			return errors.Join(append(problems, o.run.Check())...)
		},
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.run.AddTo(flags)
	flags.StringVar(&o.name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.certs, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	flags.StringVar(&o.source.URL, "repo-url", "", "git repository: https:// or ssh://, or user@host:path; folder:HASH waits for a folder that mlenv run sends")
	flags.StringVar(&o.source.Revision, "revision", "", "branch, tag or commit (default: the repository's HEAD)")
	flags.BoolVar(&o.source.Submodules, "submodules", true, "fetch submodules too")
	flags.BoolVar(&o.source.LFS, "lfs", false, "fetch what Git LFS pointers stand for; without it pointers are refused")
	flags.StringVar(&o.authDir, "auth-dir", "", "folder of a mounted Secret with username and password or token, or ssh-privatekey and known_hosts")
	flags.StringVar(&o.caFile, "ca-file", "", "file of CAs that are trusted beside the image's own")
	flags.StringVar(&o.scratch, "scratch", "", "folder for the fetched files (default: a temporary one)")
	flags.StringVar(&o.requirements, "requirements", "", "pip requirements file in the repository, installed once into a virtual environment on the claim")
	flags.DurationVar(&o.pipTimeout, "requirements-timeout", 20*time.Minute, "time for installing the requirements")
	commit := step.NewResult(cmd, "commit", "the commit that the nodes have now")
	hash := step.NewResult(cmd, "tree", "the tree's hash, which every node confirmed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		result, err := o.sync(cmd.Context(), cmd)
		if err != nil {
			return err
		}
		return errors.Join(commit.Write(result.commit), hash.Write(string(result.tree)))
	}
	return cmd
}

type result struct {
	commit string
	tree   tree.Digest
}

// sync fetches, scans, sends and switches.
func (o *options) sync(ctx context.Context, cmd *cobra.Command) (result, error) {
	log := step.Log(cmd)
	var err error
	if o.source.Auth, err = git.AuthFromDir(o.authDir); err != nil {
		return result{}, err
	}
	if o.source.Auth, err = o.source.Auth.WithCAFile(o.caFile); err != nil {
		return result{}, err
	}
	clients, err := o.kube.Connect()
	if err != nil {
		return result{}, err
	}
	set, detach, err := nodes.Attach(ctx, clients, log, o.name, o.certs, o.run)
	if err != nil {
		return result{}, err
	}
	defer detach()
	if IsSentURL(o.source.URL) {
		return o.awaitSent(ctx, cmd, set)
	}

	dir, err := os.MkdirTemp(o.scratch, "repository-")
	if err != nil {
		return result{}, fmt.Errorf("making a folder for the repository: %w", err)
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	commit, err := git.Fetch(ctx, log, dir, o.source)
	if err != nil {
		return result{}, err
	}
	manifest, err := scan(ctx, dir)
	if err != nil {
		return result{}, err
	}
	log.Info(fmt.Sprintf("Fetched commit %s in %.1f s: %s.", commit, time.Since(began).Seconds(), describe(manifest)))
	needs := requirements{name: o.requirements, program: agent.Program, venvs: agent.State + "/venvs", timeout: o.pipTimeout, run: o.run.Name}
	hash, err := sender{nodes: set, log: log}.deliver(ctx, dir, manifest, needs)
	if err != nil {
		return result{}, err
	}
	return result{commit: commit, tree: hash}, nil
}

// awaitSent is sync of a folder that somebody else sends, with its requirements installed.
func (o *options) awaitSent(ctx context.Context, cmd *cobra.Command, set nodes.Set) (result, error) {
	of, err := readSentURL(o.source.URL)
	if err != nil {
		return result{}, err
	}
	limit := sendTime
	if o.requirements != "" {
		limit += o.pipTimeout
	}
	// What the sender calls it: the commit that the folder was at, and whether it has changes.
	return result{commit: o.source.Revision, tree: of.tree}, await(ctx, step.Log(cmd), set, of, limit)
}

func describe(m tree.Manifest) string {
	files, bytes := m.Totals()
	return fmt.Sprintf("%s, %s", humanize.Count(files, "file"), humanize.Bytes(bytes))
}
