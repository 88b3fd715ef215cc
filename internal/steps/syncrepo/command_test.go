// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// TestChainsHints: Tekton Chains records the repository and the commit as the source of a run, without credentials.
func TestChainsHints(t *testing.T) {
	commit := strings.Repeat("0123456789", 4)
	for url, want := range map[string]string{
		"https://github.com/me/my-model.git":              "https://github.com/me/my-model.git",
		"https://me:token@github.com/me/my-model.git":     "https://github.com/me/my-model.git",
		"git@github.com:me/my-model.git":                  "ssh://github.com/me/my-model.git",
		"folder:" + strings.Repeat("0123456789abcdef", 4): "",
	} {
		t.Run(want, func(t *testing.T) {
			cmd, dir := &cobra.Command{}, t.TempDir()
			source, at := command.NewResult(cmd, "CHAINS-GIT_URL", ""), command.NewResult(cmd, "CHAINS-GIT_COMMIT", "")
			flags := []string{"--CHAINS-GIT_URL-result=" + filepath.Join(dir, "url"), "--CHAINS-GIT_COMMIT-result=" + filepath.Join(dir, "commit")}
			if err := cmd.ParseFlags(flags); err != nil {
				t.Fatal(err)
			}
			if err := writeHints(url, commit, source, at); err != nil {
				t.Fatal(err)
			}
			gotURL, _ := os.ReadFile(filepath.Join(dir, "url")) // missing if there is no hint
			gotCommit, _ := os.ReadFile(filepath.Join(dir, "commit"))
			if string(gotURL) != want || (string(gotCommit) == commit) != (want != "") {
				t.Errorf("%s: CHAINS-GIT_URL %q, CHAINS-GIT_COMMIT %q; want %q", url, gotURL, gotCommit, want)
			}
		})
	}
}
