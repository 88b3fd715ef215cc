// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

var (
	span   = regexp.MustCompile("`([^`]+)`")
	link   = regexp.MustCompile(`\]\(([^)]+)\)`)
	target = regexp.MustCompile(`(?m)^([a-z0-9 -]+):`)
)

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Every old name and every old check is in a row, and everything that a row names exists: make targets, pages, and commands, which accept
// the flags, their values and the arguments. The end-to-end test of the same page runs the commands.
func TestFromScripts(t *testing.T) {
	example := newExample(t)
	var want, got []string
	for line := range strings.Lines(read(t, filepath.Join("testdata", "old-names.txt"))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			want = append(want, line)
		}
	}
	targets := makeTargets(t)
	docs := filepath.Join("..", "..", "docs")
	for line := range strings.Lines(read(t, filepath.Join(docs, "project", "from-scripts.md"))) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) < 2 {
			t.Errorf("%q: want an old name and its counterpart", line)
			continue
		}
		old := cells[0]
		for _, found := range span.FindAllStringSubmatch(old, -1) {
			got = append(got, strings.ReplaceAll(found[1], `\|`, "|"))
		}
		counterparts := 0
		for _, found := range span.FindAllStringSubmatch(strings.Join(cells[1:], " "), -1) {
			words := strings.Fields(found[1])
			switch {
			case words[0] == "mlenv":
				example.accepts(t, old, words[1:])
			case words[0] == "make" && !targets[words[1]]:
				t.Errorf("%s: %q: no such target", old, found[1])
			case words[0] != "make":
				continue
			}
			counterparts++
		}
		for _, found := range link.FindAllStringSubmatch(line, -1) {
			counterparts++
			checkLink(t, filepath.Join(docs, "project", "from-scripts.md"), found[1])
		}
		if counterparts == 0 {
			t.Errorf("%s has no counterpart", old)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("old names in the table (-want +got):\n%s", diff)
	}
}

// example is what the words in capitals of a page stand for.
type example struct{ *strings.Replacer }

func newExample(t *testing.T) example {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("..", "..", "clusters", "barcelona.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return example{strings.NewReplacer("clusters/CLUSTER.yaml", file, "./workspace", dir, "FOLDER", dir, "RUN", "run-1",
		"CLUSTER", "barcelona", "NS", "team", "FILE", "file")}
}

// accepts parses a command line as mlenv does, and does not run it.
func (e example) accepts(t *testing.T, old string, words []string) {
	t.Helper()
	root := newRoot()
	found, _, err := root.Find(words)
	if err != nil || found == root {
		t.Errorf("%s: no command mlenv %s", old, strings.Join(words, " "))
		return
	}
	found.RunE = func(*cobra.Command, []string) error { return nil }
	root.SilenceErrors, root.SilenceUsage = true, true
	var args []string
	for _, word := range words {
		args = append(args, e.Replace(word))
	}
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Errorf("%s: mlenv %s: %v", old, strings.Join(words, " "), err)
	}
}

// oldTargets returns the make targets of the earlier scripts.
func oldTargets(t *testing.T) string {
	t.Helper()
	return read(t, filepath.Join("..", "..", "clusters", "from-scripts.mk"))
}

func makeTargets(t *testing.T) map[string]bool {
	t.Helper()
	targets := map[string]bool{}
	for _, found := range target.FindAllStringSubmatch(read(t, filepath.Join("..", "..", "Makefile"))+oldTargets(t), -1) {
		for name := range strings.FieldsSeq(found[1]) {
			targets[name] = true
		}
	}
	return targets
}

// checkCommand checks that the command and its flags exist. It does not check the values of flags.
func checkCommand(t *testing.T, old string, words []string) {
	t.Helper()
	root := newRoot()
	root.InitDefaultCompletionCmd()
	found, rest, err := root.Find(words)
	if err != nil || found == root {
		t.Errorf("%s: no command mlenv %s", old, strings.Join(words, " "))
		return
	}
	for _, word := range rest {
		if word == "--" {
			return
		}
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && !lookup(found, name) {
			t.Errorf("%s: mlenv %s has no flag --%s", old, found.Name(), name)
		}
	}
}

func lookup(cmd *cobra.Command, flag string) bool {
	return cmd.Flags().Lookup(flag) != nil || cmd.InheritedFlags().Lookup(flag) != nil
}

// The one-line targets call commands and flags that exist. No other target calls mlenv, so that none of a developer's habits, such as make
// clean, touches an environment.
func TestMakeTargetsOfScripts(t *testing.T) {
	calls := 0
	if strings.Contains(read(t, filepath.Join("..", "..", "Makefile")), "$(MLENV)") ||
		regexp.MustCompile(`(?m)^[a-z -]*\bclean( [a-z -]+)?:`).MatchString(oldTargets(t)) {
		t.Error("the Makefile calls mlenv, or clean is a target of from-scripts.mk")
	}
	for line := range strings.Lines(oldTargets(t)) {
		_, call, ok := strings.Cut(strings.TrimSpace(line), "$(MLENV) ")
		if !ok {
			continue
		}
		calls++
		var words []string
		for _, word := range strings.Fields(call) {
			if !strings.Contains(word, "$") && !strings.Contains(word, ")") {
				words = append(words, word)
			}
		}
		checkCommand(t, "make", words)
	}
	if calls < 10 {
		t.Errorf("%d targets call mlenv, want those of the table", calls)
	}
}
