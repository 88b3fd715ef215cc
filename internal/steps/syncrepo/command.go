// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// Command returns the step sync-repo.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	var authDir, caFile string
	cmd := &cobra.Command{
		Use:   "sync-repo --repo-url URL",
		Short: "Put one commit of a git repository on every node of an environment",
		Long: `Put one commit of a git repository on every node of an environment.

Each node receives the files that it does not have yet. When every node holds the
whole tree, all nodes switch to it. Nodes that share storage receive it once.
Files that .mlenvignore names are left out. Nothing else on the nodes changes.`,
		Example: `  sync-repo --repo-url https://github.com/example/model --revision v1.2
  sync-repo --repo-url git@github.com:example/model.git --auth-dir /etc/mlenv/git --requirements requirements.txt`,
		Args: func(_ *cobra.Command, args []string) error { return errors.Join(command.FlagsOnly(args), o.Check()) },
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	flags.StringVar(&authDir, "auth-dir", "", "folder of a mounted Secret with username and password or token, or ssh-privatekey and "+
		"known_hosts")
	flags.StringVar(&caFile, "ca-file", "", "file of CAs to trust in addition to the image's own")
	commit := command.NewResult(cmd, "commit", "the commit on the nodes")
	hash := command.NewResult(cmd, "tree", "the tree's hash, which every node has confirmed")
	source := command.NewResult(cmd, "CHAINS-GIT_URL", "the repository without credentials; nothing for a folder")
	sourceCommit := command.NewResult(cmd, "CHAINS-GIT_COMMIT", "the same as commit; nothing for a folder")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Source.Auth, err = git.AuthFromDir(authDir); err != nil {
			return err
		}
		if o.Source.Auth, err = o.Source.Auth.WithCAFile(caFile); err != nil {
			return err
		}
		clients, err := where.Connect()
		if err != nil {
			return err
		}
		result, err := Run(cmd.Context(), Deps{Clients: clients, Log: command.Log(cmd)}, o)
		if err != nil {
			return err
		}
		return errors.Join(commit.Write(result.Commit), hash.Write(string(result.Tree)),
			writeHints(o.Source.URL, result.Commit, source, sourceCommit))
	}
	return cmd
}

// writeHints writes the two results that Tekton Chains records as the source of a run. A folder has none: its commit need not have its
// files.
func writeHints(url, at string, source, commit *command.Result) error {
	shown := git.WithoutUser(url)
	if git.IsFolder(url) || shown == "" || at == "" {
		return nil
	}
	return errors.Join(source.Write(shown), commit.Write(at))
}

// AddFlags adds the options' flags and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Run.AddTo(flags)
	const task = "sync-repo"
	param.Flag(flags, &o.Name, task, "name")
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	param.Flag(flags, &o.Source.URL, task, "repo-url")
	param.Flag(flags, &o.Source.Revision, task, "revision")
	param.Flag(flags, &o.Source.Submodules, task, "submodules")
	param.Flag(flags, &o.Source.LFS, task, "lfs")
	flags.StringVar(&o.Scratch, "scratch", "", "folder for the fetched files (default: a temporary one)")
	param.Flag(flags, &o.Requirements, task, "requirements")
	param.Flag(flags, &o.RequirementsTimeout, task, "requirements-timeout")
}

// Check reports all mistakes in the options.
func (o *Options) Check() error {
	var problems []error
	if o.Source.URL == "" {
		problems = append(problems, errors.New("--repo-url is missing: want a git repository, as in https://github.com/example/model"))
	} else if git.IsFolder(o.Source.URL) {
		if _, digest, err := readSentURL(o.Source.URL); err != nil {
			problems = append(problems, err)
		} else if (o.Requirements != "") != (digest != "") {
			problems = append(problems, fmt.Errorf("--requirements %q: want it exactly if --repo-url %s has a digest of requirements",
				o.Requirements, o.Source.URL))
		}
	}
	return errors.Join(append(problems, o.Run.Check())...)
}
