package action

import (
	"os"

	"github.com/sethvargo/go-githubactions"
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Command is mlenv action, which action.yml calls.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "action",
		Short: "The steps of the GitHub Action",
		Long: `What action.yml calls: run starts a run and follows it, end sees to the end of one whose
job was cancelled. Inputs come as a JSON object in $` + inputsVariable + `.

Exit code 0: the run succeeded; 1: it did not, or could not be started.`,
		Hidden: true,
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "run", Short: "Start a run and follow it; the end of this process cancels it", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				gh := githubactions.New(githubactions.WithWriter(cmd.OutOrStdout()))
				a, w, err := begin(gh, os.Getenv)
				if err == nil {
					err = a.run(cmd.Context(), w)
				}
				return told(gh, err)
			},
		},
		&cobra.Command{
			Use: "end", Short: "Cancel the run that the step before has left, and wait for its end", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				gh := githubactions.New(githubactions.WithWriter(cmd.OutOrStdout()))
				a, _, err := begin(gh, os.Getenv)
				if err == nil {
					err = a.end(cmd.Context())
				}
				return told(gh, err)
			},
		},
	)
	return cmd
}

// told annotates the job with an error that nobody was told of yet.
func told(gh *githubactions.Action, err error) error {
	if err == nil || step.Printed(err) {
		return err
	}
	text := err.Error()
	if next := fail.NextOf(err); next != "" {
		text += "\nnext: " + next
	}
	gh.WithFieldsMap(map[string]string{"title": string(fail.ReasonOf(err))}).Errorf("%s", text)
	return &step.Exit{Code: step.Failed}
}
