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

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/source/watch"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

// folder is the one that somebody works in.
type folder struct {
	dir          string
	requirements string
	pipTimeout   time.Duration
}

func (f *folder) addTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.requirements, "requirements", "", "pip requirements file in the folder, installed once into a virtual environment on the claim")
	flags.DurationVar(&f.pipTimeout, "requirements-timeout", 20*time.Minute, "time for installing the requirements")
}

func (f *folder) check() (problems []error) {
	if info, err := os.Stat(f.dir); err != nil {
		problems = append(problems, fmt.Errorf("folder %q: %w", f.dir, err))
	} else if !info.IsDir() {
		problems = append(problems, fmt.Errorf("folder %q: it is a file: want the folder that it lies in", f.dir))
	}
	if filepath.IsAbs(f.requirements) {
		problems = append(problems, fmt.Errorf("--requirements %q: want a path in the folder", f.requirements))
	}
	if f.pipTimeout <= 0 {
		problems = append(problems, fmt.Errorf("--requirements-timeout %s: want more than nothing", f.pipTimeout))
	}
	return problems
}

// send makes the folder, as it is now, the nodes' current tree.
func (f *folder) send(ctx context.Context, log *slog.Logger, set nodes.Set) error {
	ignore, err := tree.LoadWorkIgnore(f.dir)
	if err != nil {
		return err
	}
	_, err = syncrepo.SendFolder(ctx, log, set, syncrepo.Folder{
		Dir: f.dir, Ignore: ignore, Requirements: f.requirements, RequirementsTimeout: f.pipTimeout,
	})
	return err
}

type syncing struct {
	place
	folder
	watch bool
}

func syncCommand() *cobra.Command {
	var s syncing
	cmd := &cobra.Command{
		Use:   "sync [DIR]",
		Short: "Put a folder, as it is, on all nodes of a kept environment",
		Long: `Put a folder (default: this one), as it is, on all nodes of an environment that is up, as /workspace/repo, with the
code of the step sync-repo: only what the nodes do not have is sent, every node confirms the whole, and a
training that runs keeps the tree that it began with. Nothing else on the nodes is touched.

What .gitignore files name is left out, and what .mlenvignore in the folder names, which has the last word: a line !NAME in it
brings something back.

With --watch it goes on: what changes is sent at once, until Ctrl-C.

Exit code 0: the nodes have it; 1: they do not; 2: wrong usage.`,
		Example: `  mlenv sync
  mlenv sync ../model --requirements=requirements.txt
  mlenv sync --watch`,
		Args: func(_ *cobra.Command, args []string) error {
			s.dir = "."
			if len(args) > 0 {
				s.dir = args[0]
			}
			problems := s.check()
			if len(args) > 1 {
				problems = append(problems, fmt.Errorf("arguments %q: want one folder or none", args))
			}
			return errors.Join(problems...)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), step.Log(cmd)) },
	}
	s.place.addTo(cmd.Flags())
	s.folder.addTo(cmd.Flags())
	cmd.Flags().BoolVarP(&s.watch, "watch", "w", false, "go on, and send what changes at once")
	step.AddLogFormat(cmd)
	return cmd
}

func (s *syncing) run(ctx context.Context, log *slog.Logger) error {
	_, set, detach, err := s.attach(ctx, log)
	if err != nil {
		return err
	}
	defer detach()
	if !s.watch {
		return s.send(ctx, log, set)
	}
	// Before it is sent: what changes while it is must be seen.
	changes, err := watch.Folder(ctx, s.dir)
	if err != nil {
		return err
	}
	if err := s.send(ctx, log, set); err != nil {
		return err
	}
	log.Info(fmt.Sprintf("Watching %s; what changes is sent at once. Ctrl-C ends it.", s.dir))
	for change := range changes {
		log.Info(change.String() + ".")
		if change.Problem != nil {
			log.Warn(fmt.Sprintf("Not all of it is watched: %v", change.Problem))
		}
		// A file that is half written, or a bad ignore file, is mended by the next change.
		if err := s.send(ctx, log, set); err != nil && ctx.Err() == nil {
			log.Warn(fmt.Sprintf("The nodes still have what was sent before: %v", err))
		}
	}
	return nil
}
