// SPDX-License-Identifier: Apache-2.0

package action

import (
	"context"
	"os"

	"github.com/sethvargo/go-githubactions"
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Command returns the command mlenv action, which action.yml calls.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "action",
		Short: "The steps of the GitHub Action",
		Long: `The steps of action.yml: run starts a run and follows it, end cancels a run that it has left. Both read the
inputs from $` + inputsVariable + `, a JSON object.

Exit code 0: the run succeeded; 1: it failed, or could not be started.`,
		Hidden: true,
	}
	cmd.AddCommand(
		stepCommand("run", "Start a run and follow it; if this process is stopped, cancel the run", (*action).run),
		stepCommand("end", "Cancel the run that the step before has left, and wait for its end",
			func(a *action, ctx context.Context, _ settings) error { return a.cancelLeftRun(ctx) }),
	)
	return cmd
}

func stepCommand(use, short string, do func(*action, context.Context, settings) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			gh := githubactions.New(githubactions.WithWriter(cmd.OutOrStdout()))
			if name, _, err := (&action{page: page{getenv: os.Getenv}}).stored(); use == "end" && name == "" && err == nil {
				return nil // the step before has reported everything, also what is wrong with the inputs
			}
			a, s, err := begin(gh, os.Getenv)
			if err == nil {
				err = do(a, cmd.Context(), s)
			}
			return annotated(gh, err)
		},
	}
}

// annotated annotates the job with an error, unless that was reported already.
func annotated(gh *githubactions.Action, err error) error {
	if err == nil || command.Printed(err) {
		return err
	}
	text := err.Error()
	for _, next := range fail.NextsOf(err) {
		text += "\nnext: " + next
	}
	gh.WithFieldsMap(map[string]string{"title": string(fail.ReasonOf(err))}).Errorf("%s", text)
	return &command.Exit{Code: command.Failed}
}
