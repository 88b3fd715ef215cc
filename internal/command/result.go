// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// maxResult bounds a result: all results of a pod share a termination message of 4096 bytes with Tekton's own.
const maxResult = 700

// Result is a Tekton result: a file that the flag --NAME-result names. Without the flag it is not written.
type Result struct {
	name string
	path string
}

// NewResult adds the flag --NAME-result to the command.
func NewResult(cmd *cobra.Command, name, usage string) *Result {
	r := &Result{name: name}
	cmd.Flags().StringVar(&r.path, name+"-result", "", "file for the result "+name+": "+usage)
	return r
}

// Write writes the value without a newline, shortened to maxResult.
func (r *Result) Write(value string) error {
	if r.path == "" {
		return nil
	}
	value = strings.TrimSpace(value)
	if len(value) > maxResult {
		value = strings.ToValidUTF8(value[:maxResult-len("…")], "") + "…"
	}
	if err := os.WriteFile(r.path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("writing result %s: %w", r.name, err)
	}
	return nil
}
