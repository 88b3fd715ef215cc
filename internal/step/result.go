package step

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// maxResult keeps the results of a pod, which share 4096 bytes of termination
// message with Tekton's own, within bounds.
const maxResult = 700

// Result is a Tekton result: a file named by the flag --NAME-result. Without
// the flag it is written nowhere.
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

// Write writes the value without a newline, shortened to what a result may hold.
func (r *Result) Write(value string) error {
	if r.path == "" {
		return nil
	}
	value = strings.TrimSpace(value)
	if len(value) > maxResult {
		cut := maxResult - len("…")
		for !utf8.RuneStart(value[cut]) {
			cut--
		}
		value = value[:cut] + "…"
	}
	if err := os.WriteFile(r.path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("writing result %s: %w", r.name, err)
	}
	return nil
}
