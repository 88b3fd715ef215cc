// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

const (
	// manyCommands is the number of commands with the same flag from which only the index describes it.
	manyCommands = 6
	// sharedFlags is how many flags two commands share at least if the page of one refers to the other's.
	sharedFlags = 3
	usualExit   = "\n\nExit codes: 0 done, 1 failed, 2 wrong usage."
)

// TestReferenceIsCurrent: the pages of the commands are generated from the commands; -update writes them, and deletes those of commands
// that no longer exist.
func TestReferenceIsCurrent(t *testing.T) {
	r := newReference(t)
	pages := map[string]string{"README.md": r.index()}
	for _, top := range r.root.Commands() {
		commands := shown(top)
		for _, cmd := range commands {
			pages[top.Name()+".md"] = r.page(top, commands)
			if !strings.Contains(cmd.Long, "Exit code") {
				t.Errorf("%s: its help does not list the exit codes", cmd.CommandPath())
			}
		}
	}
	golden.Folder(t, "../../docs/reference/commands", pages)
}

// TestFlagGroups: the flags of commands with many flags have a group, and one group only, and their help has its title.
func TestFlagGroups(t *testing.T) {
	known, used := map[string]bool{}, map[string]bool{}
	for _, group := range flagGroups {
		for _, name := range group.flags {
			if known[name] {
				t.Errorf("flag --%s has two groups", name)
			}
			known[name] = true
		}
	}
	for _, cmd := range shown(newRoot()) {
		groups := groupsOf(cmd)
		if len(groups) < manyGroups {
			continue
		}
		help := helpOf(t, cmd, "all")
		for _, group := range groups {
			if !strings.Contains(help, "\n"+group.title+":\n  ") {
				t.Errorf("%s --help=all has no heading %s:\n%s", cmd.CommandPath(), group.title, help)
			}
			for _, name := range group.flags {
				used[name] = true
			}
		}
	}
	for name := range known {
		if !used[name] {
			t.Errorf("flagGroups has --%s, which no command with many flags has", name)
		}
	}
}

// helpOf returns what a command prints with --help=VALUE.
func helpOf(t *testing.T, cmd *cobra.Command, value string) string {
	t.Helper()
	var help bytes.Buffer
	cmd.SetOut(&help)
	if err := errors.Join(cmd.Flags().Set("help", value), cmd.Help()); err != nil {
		t.Fatal(err)
	}
	return help.String()
}

// TestHelp: mlenv --help lists 20 commands at most and mlenv run --help a dozen flags; with --help=all they list all.
func TestHelp(t *testing.T) {
	root := newRoot()
	short, all := helpOf(t, root, "true"), helpOf(t, root, "all")
	listed := func(help, name string) bool { return strings.Contains(help, "\n  "+name+" ") }
	for _, cmd := range root.Commands() {
		name := cmd.Name()
		if listed(short, name) != slices.Contains(everyday, name) || listed(all, name) == cmd.Hidden {
			t.Errorf("mlenv %s is in the wrong lists:\n%s\n%s", name, short, all)
		}
	}
	run, _, err := root.Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	short, all = helpOf(t, run, "true"), helpOf(t, run, "all")
	run.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if name := " --" + flag.Name + " "; flag.Name != "help" && (strings.Contains(flagsIn(short), name) != slices.Contains(usual, flag.Name) ||
			!strings.Contains(flagsIn(all), name)) {
			t.Errorf("mlenv run:%sis in the wrong lists:\n%s\n%s", name, short, all)
		}
	})
	for _, name := range everyday {
		if found, _, err := root.Find([]string{name}); err != nil || found == root {
			t.Errorf("everyday has %s, which is no command", name)
		}
	}
	for _, name := range usual {
		if run.Flag(name) == nil {
			t.Errorf("usual has --%s, which mlenv run lacks", name)
		}
	}
	if len(everyday) > 20 || len(usual) > 14 {
		t.Errorf("%d commands and %d flags are too many to read", len(everyday), len(usual))
	}
}

// flagsIn returns the names of the flags that a help lists.
func flagsIn(help string) string {
	var names strings.Builder
	for line := range strings.Lines(help) {
		if name := listedFlag.FindString(line); name != "" {
			names.WriteString(name)
		}
	}
	return names.String()
}

var listedFlag = regexp.MustCompile(`^  (-., |    )--[a-z-]+ `)

// reference writes the pages of the commands.
type reference struct {
	root *cobra.Command
	// common are the flags that the index describes.
	common []*pflag.Flag
	// homes are the commands whose pages describe flags that other commands share, by rows.
	homes map[string]*cobra.Command
}

func newReference(t *testing.T) *reference {
	t.Helper()
	r := &reference{root: newRoot(), homes: map[string]*cobra.Command{}}
	count := map[string]int{}
	for _, cmd := range shown(r.root) {
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if count[rowOf(flag)]++; count[rowOf(flag)] == manyCommands && !flag.Hidden && flag.Name != "help" {
				r.common = append(r.common, flag)
				r.homes[rowOf(flag)] = r.root
			}
		})
	}
	for _, name := range []string{"run", "up", "train", "preflight", "runs"} {
		home, _, err := r.root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		home.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if r.homes[rowOf(flag)] == nil {
				r.homes[rowOf(flag)] = home
			}
		})
	}
	return r
}

// index returns the page with the tables of all commands and the flags that many of them have.
func (r *reference) index() string {
	var page strings.Builder
	page.WriteString("# Commands of mlenv\n\nWritten by `make generate` from `mlenv COMMAND --help=all`. [Runs](../../train/runs.md)\n" +
		"and [development](../../train/develop.md) explain how to combine the commands. Exit codes are 0 done, 1 failed, 2 wrong usage,\n" +
		"unless a command lists its own.\n")
	for _, group := range r.root.Groups() {
		fmt.Fprintf(&page, "\n## %s\n\n| command | what it does |\n| --- | --- |\n", strings.TrimSuffix(group.Title, ":"))
		for _, top := range r.root.Commands() {
			if top.GroupID != group.ID {
				continue
			}
			for _, cmd := range shown(top) {
				fmt.Fprintf(&page, "| [%s](%s) | %s |\n", cmd.CommandPath(), pageOf(cmd), cmd.Short)
			}
		}
	}
	page.WriteString("\n## Flags of many commands\n")
	writeFlags(&page, r.common)
	return page.String()
}

// pageOf returns where the reference has the command.
func pageOf(cmd *cobra.Command) string {
	if cmd.Parent().HasParent() {
		return cmd.Parent().Name() + ".md#" + idOf(cmd.CommandPath())
	}
	return cmd.Name() + ".md"
}

// page returns the page of the command top with the commands on it.
func (r *reference) page(top *cobra.Command, commands []*cobra.Command) string {
	var page strings.Builder
	if !top.Runnable() {
		fmt.Fprintf(&page, "# %s\n\n%s.\n", top.CommandPath(), top.Short)
	}
	for _, cmd := range commands {
		level := "#"
		if cmd != top {
			level = "\n##"
		}
		fmt.Fprintf(&page, "%s %s\n\n", level, cmd.CommandPath())
		fmt.Fprintf(&page, "    %s\n\n%s\n", cmd.UseLine(), inMarkdown(strings.TrimSuffix(cmd.Long, usualExit)))
		if cmd.HasExample() {
			page.WriteString("\n")
			for line := range strings.Lines(cmd.Example) {
				page.WriteString("  " + line)
			}
			page.WriteString("\n")
		}
		r.writeGroups(&page, cmd, strings.TrimSpace(level)+"#")
	}
	return page.String()
}

// writeGroups writes the flags of a command in groups, and lists those that the index or another page describes.
func (r *reference) writeGroups(page *strings.Builder, cmd *cobra.Command, level string) {
	elsewhere := map[*cobra.Command][]string{}
	var homes []*cobra.Command
	groups := groupsOf(cmd)
	for _, group := range groups {
		for _, name := range group.flags {
			home := r.homes[rowOf(cmd.Flag(name))]
			if home == nil || home == cmd {
				continue
			}
			if elsewhere[home] == nil {
				homes = append(homes, home)
			}
			elsewhere[home] = append(elsewhere[home], name)
		}
	}
	homes = slices.DeleteFunc(homes, func(home *cobra.Command) bool { return home.HasParent() && len(elsewhere[home]) < sharedFlags })
	for _, group := range groups {
		var own []*pflag.Flag
		for _, name := range group.flags {
			if flag := cmd.Flag(name); !slices.Contains(homes, r.homes[rowOf(flag)]) {
				own = append(own, flag)
			}
		}
		if len(own) > 0 && group.title != "" {
			fmt.Fprintf(page, "\n%s %s\n", level, group.title)
		}
		writeFlags(page, own)
	}
	for _, home := range homes {
		of := "[flags of many commands](README.md#flags-of-many-commands)"
		if home.HasParent() {
			of = fmt.Sprintf("[%s](%s)", home.CommandPath(), pageOf(home))
		}
		fmt.Fprintf(page, "\nDescribed in %s: `--%s`.\n", of, strings.Join(elsewhere[home], "`, `--"))
	}
}

// inMarkdown returns a help text for a page. A list, which the help indents by two, is code there: Markdown would make it a paragraph.
func inMarkdown(text string) string {
	var page strings.Builder
	inList, empty := false, true
	for line := range strings.Lines(text) {
		isList := strings.HasPrefix(line, "  ")
		if isList != inList && !empty && line != "\n" {
			page.WriteString("\n")
		}
		switch {
		case isList:
			page.WriteString("  " + line)
		default:
			page.WriteString(plain.Replace(line))
		}
		inList, empty = isList, line == "\n"
	}
	return page.String()
}

// plain escapes text that Markdown would interpret.
var plain = strings.NewReplacer("*", `\*`, "<", `\<`)

// shown returns a command, unless it has no parent, and the commands below it that run something and are not hidden.
func shown(cmd *cobra.Command) (commands []*cobra.Command) {
	if cmd.Hidden {
		return nil
	}
	if cmd.HasParent() && cmd.Runnable() {
		commands = append(commands, cmd)
	}
	for _, sub := range cmd.Commands() {
		commands = append(commands, shown(sub)...)
	}
	return commands
}

// writeFlags writes a table of flags.
func writeFlags(page *strings.Builder, flags []*pflag.Flag) {
	if len(flags) > 0 {
		page.WriteString("\n| flag | meaning |\n| --- | --- |\n")
	}
	for _, flag := range flags {
		page.WriteString(rowOf(flag))
	}
}

// rowOf returns the row of a flag.
func rowOf(flag *pflag.Flag) string {
	kind, usage := pflag.UnquoteUsage(flag)
	name := "--" + flag.Name
	if flag.Shorthand != "" {
		name = "-" + flag.Shorthand + ", " + name
	}
	switch flag.DefValue {
	case "", "[]", "false", "0", "0s":
	default:
		usage += " (default: " + flag.DefValue + ")"
	}
	return fmt.Sprintf("| `%s` | %s |\n", strings.TrimSpace(name+" "+strings.ReplaceAll(kind, "|", `\|`)),
		strings.ReplaceAll(plain.Replace(usage), "|", `\|`))
}
