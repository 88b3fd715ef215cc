// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/source/watch"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

type folder struct {
	syncrepo.Folder
	// script, launcher and config describe the training that follows, if any.
	script, config string
	launcher       agent.Launcher
}

func (f *folder) addTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.Requirements, "requirements", "", "pip requirements file in the folder, installed once into a virtual environment on "+
		"the claim")
	flags.DurationVar(&f.RequirementsTimeout, "requirements-timeout", 20*time.Minute, "time for installing the requirements")
}

func (f *folder) check() error {
	var problems []error
	if info, err := os.Stat(f.Dir); err != nil {
		problems = append(problems, fmt.Errorf("folder %q: %w", f.Dir, err))
	} else if !info.IsDir() {
		problems = append(problems, fmt.Errorf("folder %q: it is a file: want a folder", f.Dir))
	} else if whole, err := filepath.Abs(f.Dir); err == nil {
		f.Dir = whole // messages name it
		f.Requirements = syncrepo.InFolder(f.Dir, f.Requirements)
	}
	return errors.Join(append(problems,
		command.Want(!filepath.IsAbs(f.Requirements), "--requirements %q: want a path in the folder", f.Requirements),
		command.Want(f.RequirementsTimeout > 0, "--requirements-timeout %s: want more than 0s", f.RequirementsTimeout))...)
}

// send makes the folder the current tree of the nodes.
func (f *folder) send(ctx context.Context, log *slog.Logger, set nodes.Set) (err error) {
	if f.Ignore, err = tree.LoadWorkIgnore(f.Dir); err != nil {
		return err
	}
	params := map[string]string{"script": f.script, "launcher": string(f.launcher), "requirements": f.Requirements,
		"deepspeed-config": f.config}
	if err := syncrepo.CheckFiles(f.Dir, f.Ignore, func(param string) string { return params[param] }); err != nil {
		return err
	}
	_, err = syncrepo.SendFolder(ctx, log, set, f.Folder)
	return err
}

type syncOptions struct {
	envflags.Flags
	folder
	watch bool
}

func syncCommand() *cobra.Command {
	var s syncOptions
	cmd := &cobra.Command{
		Use:   "sync [DIR]",
		Short: "Copy a folder to all nodes of a kept environment",
		Long: `Copy a folder (default: this one) to /workspace/repo on all nodes of a kept environment, with the code of the step
sync-repo. mlenv sends only files that the nodes do not have, and every node confirms the whole folder. A training in
progress keeps the tree that it started from.

mlenv leaves out the files that .gitignore names. .mlenvignore in the folder names further ones; a line !NAME in it
includes a file again.

With --watch mlenv sends changes at once, until Ctrl-C.

Exit code 0: all nodes have the folder; 1: some do not; 2: wrong usage.`,
		Example: `  mlenv sync
  mlenv sync ../model --requirements=requirements.txt
  mlenv sync --watch`,
		Args: func(_ *cobra.Command, args []string) error {
			s.Dir = "."
			if len(args) > 0 {
				s.Dir = args[0]
			}
			return errors.Join(s.check(), command.Want(len(args) <= 1, "arguments %q: want one folder or none", args))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), command.Log(cmd)) },
	}
	s.AddTo(cmd.Flags(), envflags.OnlyNamespace)
	s.addTo(cmd.Flags())
	cmd.Flags().BoolVarP(&s.watch, "watch", "w", false, "continue, and send changes at once")
	command.AddLogFormat(cmd)
	return cmd
}

func (s *syncOptions) run(ctx context.Context, log *slog.Logger) error {
	clients, set, detach, err := attach(ctx, &s.Flags, log)
	if err != nil {
		return err
	}
	defer detach()
	s.folder.Environment, s.Namespace = s.Environment, clients.Namespace
	if !s.watch {
		return s.send(ctx, log, set)
	}
	// The watch starts first, to see changes during the upload.
	changes, err := watch.Folder(ctx, s.Dir)
	if err != nil {
		return err
	}
	if err := s.send(ctx, log, set); err != nil {
		return err
	}
	log.Info(fmt.Sprintf("Watching %s and sending its changes; Ctrl-C ends mlenv.", s.Dir))
	for change := range changes {
		log.Info(change.String() + ".")
		if change.Problem != nil {
			log.Warn(fmt.Sprintf("Part of the folder is not watched: %v", change.Problem))
		}
		// The next change may repair an incomplete file or an invalid ignore file.
		if err := s.send(ctx, log, set); err != nil && ctx.Err() == nil {
			log.Warn(fmt.Sprintf("The nodes keep the previous tree: %v", err))
		}
	}
	return nil
}
