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
	if !running {
		fmt.Fprintf(stderr, "%s: %v\nRun '%s --help' for what there is.\n", cmd.Name(), err, cmd.CommandPath())
		return WrongUsage
	}
	report(cmd, err)
	// A result that cannot be written must not hide the failure.
	if err := errors.Join(reason.Write(string(fail.ReasonOf(err))), message.Write(err.Error())); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", cmd.Name(), err)
	}
	return Failed
}

// report prints the failure, once.
func report(cmd *cobra.Command, err error) {
	reason, next := fail.ReasonOf(err), fail.NextOf(err)
	text := fmt.Sprintf("%s failed: %s: %s", cmd.Name(), reason, strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "\n  "))
	if next != "" {
		text += "\n  next: " + strings.ReplaceAll(next, "\n", "\n        ")
	}
	Log(cmd).Error(text, slog.String("reason", string(reason)), slog.String("next", next))
}
