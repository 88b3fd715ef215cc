// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// DeleteEach deletes all of the doomed, even after a failure, and prints what remove returns. If only some could be deleted, the next step
// is again, a format with the names of the rest: the same command would refuse those that are deleted, and with them the rest.
func DeleteEach[T any](cmd *cobra.Command, doomed []T, name func(T) string, again string, remove func(T) (what string, err error)) error {
	var problems []error
	var rest []string
	for _, d := range doomed {
		what, err := remove(d)
		if err != nil {
			problems, rest = append(problems, err), append(rest, name(d))
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted.\n", what)
	}
	if len(rest) == 0 || len(rest) == len(doomed) {
		return errors.Join(problems...)
	}
	return fail.Advise(errors.Join(problems...), again, strings.Join(rest, " "))
}
