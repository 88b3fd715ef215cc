// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Confirm asks a question on standard error, and is nil if standard input answers yes. Errors: Cancelled.
func Confirm(cmd *cobra.Command, question string) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s Type yes: ", ForTerminal(question))
	answers := make(chan string, 1)
	go func() {
		answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // an end without an answer is not a yes
		answers <- strings.TrimSpace(answer)
	}()
	select {
	case answer := <-answers:
		if answer == "yes" {
			return nil
		}
		return fail.Advise(fail.Becausef(fail.Cancelled, "asking: the answer is %q: want yes", answer), "--yes answers without a question")
	case <-cmd.Context().Done():
		return &Exit{Code: Interrupted, Err: fail.Because(fail.Cancelled, context.Cause(cmd.Context()))}
	}
}
