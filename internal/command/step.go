// SPDX-License-Identifier: Apache-2.0

// Package command is what all programs share: signals, logging, results, and the way
// from an error's reason to what is printed and to the exit code.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
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
	// WrongUsage is an invalid flag or argument.
	WrongUsage = 2
	// Unfollowed means that the end of a run could not be seen: the run itself may succeed or fail.
	Unfollowed = 3
	// Interrupted is a cancelled run or command: 128 and SIGINT's number, as in shells.
	Interrupted = 130
)

// Main runs a step's command with the arguments that complete makes of these, and exits.
func Main(cmd *cobra.Command, args []string, complete func(ctx context.Context, cmd *cobra.Command, args []string) []string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	slog.SetDefault(newLog(os.Stdout, slices.Contains(args, "--"+logFormatFlag+"="+string(JSON))))
	code := Run(ctx, cmd, complete(ctx, cmd, args), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Run runs a step's command and returns the exit code. A failure is a line of the
// step's log, and the results reason and message.
func Run(ctx context.Context, cmd *cobra.Command, args []string, stdout, stderr io.Writer) int {
	reason := NewResult(cmd, "reason", "the reason why the step failed, one word")
	message := NewResult(cmd, "message", "what was expected and what was seen")
	AddLogFormat(cmd)
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { slog.SetDefault(Log(cmd)) }
	code, err := execute(ctx, cmd, args, streams{out: stdout, err: stderr, failures: stdout})
	if err == nil {
		return code
	}
	why := fail.ReasonOf(err)
	if code == WrongUsage {
		why = fail.InvalidInput
	}
	// A result that cannot be written must not hide the failure.
	if err := errors.Join(reason.Write(string(why)), message.Write(err.Error())); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", cmd.Name(), err)
	}
	return code
}

// MainCommands is RunCommands with a context that SIGINT and SIGTERM end.
func MainCommands(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return RunCommands(ctx, root, args, stdout, stderr)
}

// UntilHangup returns a context that ends too when the terminal is lost, for a command whose work ends with it. Under nohup it does not.
// An output that nobody reads any more, as after Ctrl-C in mlenv ... | tee, does not end the program: there is work to stop.
func UntilHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // with a receiver, a broken pipe is an error of a write
	if signal.Ignored(syscall.SIGHUP) {
		return context.WithCancel(ctx)
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// RunCommands runs the command line of a program with many commands,
// as mlenv, and returns the exit code. Failures go to stderr.
func RunCommands(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	code, _ := execute(ctx, root, args, streams{out: stdout, err: stderr, failures: stderr})
	return code
}

type streams struct{ out, err, failures io.Writer }

// execute alone turns a command's error into what is printed and into the exit
// code. An error that comes before the command runs is wrong usage.
func execute(ctx context.Context, root *cobra.Command, args []string, to streams) (int, error) {
	running := false
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		// cobra checks these later, when a mistake would not be wrong usage any more.
		if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups(), FlagMistakes(cmd.Flags())); err != nil {
			return err
		}
		running = true
		return nil
	}
	if cmd, _, err := root.Find(args); err == nil && cmd.Args != nil {
		cmd.Args = withFlagMistakes(cmd.Args)
	}
	root.SetArgs(args)
	all := newOutputs(ctx)
	defer func() { _ = all.flush() }() // the words of a failure; there is no other place to report its own
	to = streams{out: all.writerFor(to.out), err: all.writerFor(to.err), failures: all.writerFor(to.failures)}
	root.SetOut(to.out)
	root.SetErr(to.err)
	root.SetContext(ctx)
	cmd, err := root.ExecuteC()
	if err = cmp.Or(err, all.flush()); err == nil {
		return Done, nil
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil && fail.ReasonOf(err) == fail.Internal {
		err = fail.Because(fail.Cancelled, fmt.Errorf("interrupted: %w", err))
	}
	code := Failed
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		code = Interrupted
	case !running:
		code = WrongUsage
		invalid := (*pflag.InvalidValueError)(nil)
		if all := flagMistakes(cmd, args); len(all) > 1 {
			err = errors.Join(all...)
		} else if errors.As(err, &invalid) {
			err = wrongValue(invalid.GetFlag(), invalid.GetValue(), invalid.Unwrap())
		}
	}
	if exit := (*Exit)(nil); errors.As(err, &exit) {
		code = exit.Code
	}
	switch {
	case Printed(err):
	case code == WrongUsage:
		fmt.Fprintf(to.err, "%s: %s\nRun '%s --help' for usage.\n", cmd.CommandPath(), ForTerminal(indented(err.Error())+advice(err)),
			cmd.CommandPath())
	default:
		reason := fail.ReasonOf(err)
		text := fmt.Sprintf("%s failed: %s: %s%s", cmd.CommandPath(), reason, indented(fail.Details(err)), advice(err))
		newLog(to.failures, IsJSON(cmd)).Error(text, "reason", reason, "next", fail.NextOf(err))
	}
	return code, err
}

// flagMistakes returns all flags with an invalid value; cobra stops at the first one.
// It sets the others, and with them the files of results.
func flagMistakes(cmd *cobra.Command, args []string) (mistakes []error) {
	for _, arg := range args {
		if arg == "--" {
			break
		}
		text, isFlag := strings.CutPrefix(arg, "--")
		name, value, ok := strings.Cut(text, "=")
		flag := cmd.Flags().Lookup(name)
		if !isFlag || !ok || flag == nil {
			continue
		}
		if err := flag.Value.Set(value); err != nil {
			mistakes = append(mistakes, wrongValue(flag, value, err))
		}
	}
	if kept := FlagMistakes(cmd.Flags()); kept != nil {
		mistakes = append(mistakes, kept)
	}
	return mistakes
}

// withFlagMistakes reports the mistakes in flags together with those that check finds.
func withFlagMistakes(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		return errors.Join(err, FlagMistakes(cmd.Flags()))
	}
}

// FlagMistakes takes the mistakes that flags keep so that all are reported at once, as the flags of package param do.
func FlagMistakes(flags *pflag.FlagSet) error {
	var all []error
	flags.VisitAll(func(flag *pflag.Flag) {
		keeper, ok := flag.Value.(interface{ TakeMistake() error })
		if !ok {
			return
		}
		if err := keeper.TakeMistake(); err != nil {
			all = append(all, fmt.Errorf("--%s %w", flag.Name, err))
		}
	})
	return errors.Join(all...)
}

// wantOf describes the values of flags whose own errors speak of Go.
var wantOf = map[string]string{
	"bool": "true or false", "duration": "a duration such as 40m or 24h", "float64": "a number", "int": "a whole number",
	"int64": "a whole number",
}

func wrongValue(flag *pflag.Flag, value string, err error) error {
	if want := wantOf[flag.Value.Type()]; want != "" {
		err = errors.New("want " + want)
	}
	return fmt.Errorf("--%s %q: %w", flag.Name, value, err)
}

// FlagsOnly returns the error of a command that takes no arguments.
func FlagsOnly(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("argument %q: want flags only", args[0])
	}
	return nil
}

func indented(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

func advice(err error) (text string) {
	for _, next := range fail.NextsOf(err) {
		text += "\n  next: " + strings.ReplaceAll(next, "\n", "\n        ")
	}
	return text
}
