// Package step is what all step binaries share: signals, logging, results, and
// the way from an error's reason to the exit code.
package step

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Exit codes.
const (
	// Done is success.
	Done = 0
	// Failed is a failure with a reason.
	Failed = 1
	// WrongUsage is a flag or argument that cannot be.
	WrongUsage = 2
)

// Main runs a step's command and exits.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := Run(ctx, cmd, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Run runs a step's command and returns the exit code. The error is printed
// with its reason and advice, and written to the results reason and message.
func Run(ctx context.Context, cmd *cobra.Command, args []string, stdout, stderr io.Writer) int {
	reason := NewResult(cmd, "reason", "one word that says why the step failed")
	message := NewResult(cmd, "message", "what was expected and what was seen")
	logFormat(cmd)
	running := false
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.CompletionOptions.DisableDefaultCmd = true
	inner := cmd.PersistentPreRunE
	cmd.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		if inner != nil {
			if err := inner(c, args); err != nil {
				return err
			}
		}
		running = true
		return nil
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return Done
	}
	code, why := Failed, fail.ReasonOf(err)
	if running {
		report(cmd, err)
	} else {
		if all := flagMistakes(cmd, args); len(all) > 1 {
			err = errors.Join(all...)
		}
		code, why = WrongUsage, fail.InvalidInput
		fmt.Fprintf(stderr, "%s: %s\nRun '%s --help' for what there is.\n", cmd.Name(), indented(err.Error()), cmd.CommandPath())
	}
	// A result that cannot be written must not hide the failure.
	if err := errors.Join(reason.Write(string(why)), message.Write(err.Error())); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", cmd.Name(), err)
	}
	return code
}

// ForPeople makes a step's command one of a command line's: without the flags
// that only Tasks give.
func ForPeople(cmd *cobra.Command) *cobra.Command {
	logFormat(cmd)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if strings.HasSuffix(flag.Name, "-result") || forTasks[flag.Name] {
			flag.Hidden = true
		}
	})
	return cmd
}

// forTasks are flags that say what a step is part of, or where a Task mounts things.
var forTasks = map[string]bool{"run-name": true, "run-uid": true, "task-name": true, "ca-file": true, "pull-secret-dir": true, "start-timeout": true, "training-timeout": true}

// flagMistakes are all flags whose values cannot be, where cobra stops at the
// first. It sets the others, and so the files of results too.
func flagMistakes(cmd *cobra.Command, args []string) (mistakes []error) {
	for _, arg := range args {
		if arg == "--" {
			break
		}
		name, value, ok := strings.Cut(arg, "=")
		flag := cmd.Flags().Lookup(strings.TrimPrefix(name, "--"))
		if !ok || flag == nil {
			continue
		}
		if err := flag.Value.Set(value); err != nil {
			mistakes = append(mistakes, fmt.Errorf("--%s %q: %w", flag.Name, value, err))
		}
	}
	return mistakes
}

func indented(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

// report prints the failure, once.
func report(cmd *cobra.Command, err error) {
	reason, next := fail.ReasonOf(err), fail.NextOf(err)
	text := fmt.Sprintf("%s failed: %s: %s", cmd.Name(), reason, indented(err.Error()))
	if next != "" {
		text += "\n  next: " + strings.ReplaceAll(next, "\n", "\n        ")
	}
	Log(cmd).Error(text, slog.String("reason", string(reason)), slog.String("next", next))
}
