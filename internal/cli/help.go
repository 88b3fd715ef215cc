// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var (
	// everyday are the commands that mlenv --help lists; mlenv --help=all lists all.
	everyday = strings.Fields(`run runs status logs cancel receipt fetch up sync train shell open down preflight check-fabric doctor top
		init install admin`)
	// usual are the flags that mlenv run --help lists; mlenv run --help=all lists all.
	usual = strings.Fields(`nodes gpus-per-node launcher requirements env image mode timeout max-restarts detach run-name resume-from local
		namespace`)
)

// helpFlag is --help, or --help=all for everything.
type helpFlag string

// Set implements pflag.Value.
func (h *helpFlag) Set(text string) error {
	*h = helpFlag(text)
	return nil
}

// String implements pflag.Value. cobra reads it as true or false.
func (h *helpFlag) String() string { return strconv.FormatBool(*h != "") }

// Type implements pflag.Value: the type that cobra wants of --help.
func (h *helpFlag) Type() string { return "bool" }

// wantsAll reports whether the command was called with --help=all.
func wantsAll(cmd *cobra.Command) bool {
	h, _ := cmd.Flag("help").Value.(*helpFlag)
	return h != nil && *h == "all"
}

// addHelp gives mlenv and all its commands the flag --help and their usage texts.
func addHelp(root *cobra.Command) {
	ungrouped := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		switch {
		case !cmd.HasParent():
			return firstScreen(cmd)
		case len(groupsOf(cmd)) >= manyGroups:
			return grouped(cmd)
		}
		return ungrouped(cmd)
	})
	addHelpFlag(root)
}

func addHelpFlag(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		addHelpFlag(child)
	}
	cmd.Flags().VarPF(new(helpFlag), "help", "h", "help for "+cmd.Name()).NoOptDefVal = "true"
}

// firstScreen prints the commands of mlenv in groups.
func firstScreen(root *cobra.Command) error {
	text, more := "Usage:\n  mlenv COMMAND [flags]\n", "More commands: mlenv --help=all\n"
	if wantsAll(root) {
		more = ""
	}
	for _, group := range root.Groups() {
		rows := ""
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID && !cmd.Hidden && (more == "" || slices.Contains(everyday, cmd.Name())) {
				rows += fmt.Sprintf("  %-*s %s\n", cmd.NamePadding(), cmd.Name(), cmd.Short)
			}
		}
		if rows != "" {
			text += "\n" + group.Title + "\n" + rows
		}
	}
	_, err := fmt.Fprintf(root.OutOrStderr(), "%s\n%sOne command with its flags: mlenv COMMAND --help\n", text, more)
	return err
}

// grouped prints the usage of a command as cobra does, with the flags in groups; of mlenv run only the usual ones.
func grouped(cmd *cobra.Command) error {
	text, more := "Usage:\n  "+cmd.UseLine()+"\n", ""
	if cmd.HasExample() {
		text += "\nExamples:\n" + cmd.Example + "\n"
	}
	groups := groupsOf(cmd)
	if cmd.CommandPath() == "mlenv run" && !wantsAll(cmd) {
		groups, more = []flagGroup{{"Flags", usual}}, "\nAll flags: mlenv run --help=all\n"
	}
	for _, group := range groups {
		flags := pflag.NewFlagSet(group.title, pflag.ContinueOnError)
		flags.SortFlags = false
		for _, name := range group.flags {
			flag := *cmd.Flag(name)
			if len(flag.Value.Type()) > longType {
				flag.Value = ofLongType{flag.Value}
			}
			flags.AddFlag(&flag)
		}
		text += "\n" + group.title + ":\n" + flags.FlagUsages()
	}
	_, err := fmt.Fprint(cmd.OutOrStderr(), text+more)
	return err
}

// ofLongType is the value of a flag whose type would push the texts of all flags to the right. The text of the flag has its values.
type ofLongType struct{ pflag.Value }

// Type implements pflag.Value.
func (ofLongType) Type() string { return "string" }
