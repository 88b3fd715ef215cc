package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestReferenceIsCurrent: the page of all commands is generated from the commands; -update writes it.
func TestReferenceIsCurrent(t *testing.T) {
	const path = "../../docs/reference/mlenv.md"
	want := commandsPage(t)
	golden.File(t, path, want)
}

// commandsPage returns the help texts of all commands as one page.
func commandsPage(t *testing.T) string {
	var page strings.Builder
	page.WriteString("# Commands of mlenv\n\nWritten by `make generate` from `mlenv COMMAND --help`. [Runs](../train/runs.md) and\n" +
		"[development](../train/develop.md) explain how to combine the commands.\n\n| command | what it does |\n| --- | --- |\n")
	commands := shown(newRoot())
	for _, cmd := range commands {
		fmt.Fprintf(&page, "| [%s](#%s) | %s |\n", cmd.CommandPath(), idOf(cmd.CommandPath()), cmd.Short)
	}
	page.WriteString("\n## Which cluster\n\nCommands that use a cluster take these flags, as `kubectl` does:\n")
	common := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&kube.Flags{}).AddTo(common)
	common.SortFlags = false
	writeFlags(&page, common, nil)
	for _, cmd := range commands {
		fmt.Fprintf(&page, "\n## %s\n\n%s.\n\n", cmd.CommandPath(), cmd.Short)
		fmt.Fprintf(&page, "    %s\n", cmd.UseLine())
		if !strings.Contains(cmd.Long, "Exit code") {
			t.Errorf("%s: its help does not list the exit codes", cmd.CommandPath())
		}
		fmt.Fprintf(&page, "\n%s\n", plain.Replace(cmd.Long))
		if cmd.HasExample() {
			page.WriteString("\n")
			for line := range strings.Lines(cmd.Example) {
				page.WriteString("  " + line)
			}
			page.WriteString("\n")
		}
		writeFlags(&page, cmd.LocalFlags(), common)
	}
	return page.String()
}

// plain escapes text that Markdown would interpret.
var plain = strings.NewReplacer("*", `\*`, "<", `\<`)

// shown returns the commands below a command that run something and are not hidden.
func shown(cmd *cobra.Command) (commands []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.Hidden {
			continue
		}
		if sub.Runnable() {
			commands = append(commands, sub)
		}
		commands = append(commands, shown(sub)...)
	}
	return commands
}

// writeFlags writes a table of flags, and one line for the flags that are the same as in common.
func writeFlags(page *strings.Builder, flags, common *pflag.FlagSet) {
	var rows strings.Builder
	whichCluster := false
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if common != nil {
			if same := common.Lookup(f.Name); same != nil && same.Usage == f.Usage {
				whichCluster = true
				return
			}
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value := ""
		switch f.DefValue {
		case "", "[]", "false", "0", "0s":
		default:
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", strings.TrimSpace(name+" "+strings.ReplaceAll(kind, "|", `\|`)), value,
			strings.ReplaceAll(plain.Replace(usage), "|", `\|`))
	})
	if rows.Len() > 0 {
		page.WriteString("\n| flag | default | meaning |\n| --- | --- | --- |\n" + rows.String())
	}
	if whichCluster {
		page.WriteString("\nAnd [which cluster](#which-cluster).\n")
	}
}
