// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is a heading of help texts and of the reference, and the names of the flags below it.
type flagGroup struct {
	title string
	flags []string
}

var (
	// flagGroups has the flags of the commands with many flags, the most used first. A flag has the same group in all commands; one without a
	// group is rare.
	flagGroups = []flagGroup{
		{"What", strings.Fields(`script module revision env env-secret requirements launcher deepspeed-config hook file trend like resume-from
			run-name git-secret repo-url script-args param tree dir schedule services routes`)},
		{"Where", strings.Fields(`nodes gpus-per-node ranks-per-node name on-busy local all-namespaces python cluster cluster-file queue
			queue-priority exclude-nodes storage workspace-size datasets-size`)},
		{"When", strings.Fields("at days time-zone")},
		{"Image", strings.Fields("image flavour folder build-args base-image build-timeout pull-secret push-secret force")},
		{"Network", strings.Fields("mode check-fabric fabric-bandwidth")},
		{"Limits", strings.Fields(`timeout start-timeout stop-grace hang-timeout max-restarts stop-if restart-if keep-for idle-timeout
			bandwidth-tolerance step-time-tolerance loss-tolerance goodput-tolerance matrix-product-tolerance slowest-device-tolerance`)},
		{"Output", strings.Fields("detach dry-run limit watch output log-format progress-every notify svg")},
	}
	clusterFlags = flagGroup{"Which cluster", strings.Fields("namespace kubeconfig context")}
)

const (
	// fewFlags is how many flags, except clusterFlags, a command lists without groups.
	fewFlags = 10
	// manyGroups is how many groups only a command with more than fewFlags has.
	manyGroups = 3
	// longType is how many characters the type of a flag has at most in the help.
	longType = 40
)

// groupsOf returns the flags of a command in groups. If they are few, the first group has all except clusterFlags, and no title.
func groupsOf(cmd *cobra.Command) (groups []flagGroup) {
	var left []string
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && flag.Name != "help" {
			left = append(left, flag.Name)
		}
	})
	own := without(left, clusterFlags.flags)
	table := append(slices.Clone(flagGroups), flagGroup{"Rare", own})
	if len(own) <= fewFlags {
		table = []flagGroup{{"", own}}
	}
	for _, group := range append(table, clusterFlags) {
		group.flags = without(group.flags, without(group.flags, left))
		if left = without(left, group.flags); len(group.flags) > 0 {
			groups = append(groups, group)
		}
	}
	return groups
}

// without returns the names that others does not have.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
}
