package admin

import (
	"fmt"
	"io"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// lineWidth is where explanations are broken.
const lineWidth = 110

// Print explains the plan. Commands stand at the line's beginning, to be pasted.
func (p Plan) Print(w io.Writer) error {
	fmt.Fprintf(w, "Cluster %s, namespace %s: what an administrator does once for pods of service account %s.\n", p.Cluster, p.Namespace, p.ServiceAccount)
	if p.Form == noForm {
		fmt.Fprintln(w, "The cluster file has network.rdma.enabled false: mode tcp needs no constraint, attachment or MachineConfig.")
	} else {
		fmt.Fprintf(w, "They use RDMA by %s.\n", p.Form)
	}
	for i, item := range p.Items {
		fmt.Fprintf(w, "\n%d. %s\n", i+1, item.What)
		explain(w, "why", item.Why)
		explain(w, "without", item.Without)
		explain(w, "cost", item.Cost)
		explain(w, "note", item.Note)
		if err := item.printCommands(w); err != nil {
			return err
		}
		if item.Name == "scc" {
			printComparisons(w, p.SCCs)
		}
	}
	for _, warning := range p.Warnings {
		fmt.Fprintf(w, "\nwarning: %s\n", warning)
	}
	return nil
}

// explain writes a labelled text, broken into lines.
func explain(w io.Writer, label, text string) {
	const indent = 12
	if text == "" {
		return
	}
	line := fmt.Sprintf("   %-*s", indent-3, label)
	empty := true
	for word := range strings.FieldsSeq(text) {
		if !empty && len(line)+1+len(word) > lineWidth {
			fmt.Fprintln(w, line)
			line, empty = strings.Repeat(" ", indent), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	fmt.Fprintln(w, line)
}

func (i Item) printCommands(w io.Writer) error {
	commands := i.Commands
	if len(commands) == 0 && len(i.Objects) > 0 {
		var text strings.Builder
		if err := step.WriteObjects(&text, i.Objects); err != nil {
			return err
		}
		commands = []string{"oc apply --server-side -f - <<'EOF'\n" + text.String() + "EOF"}
	}
	for _, command := range commands {
		fmt.Fprintf(w, "\n%s\n", command)
	}
	return nil
}

func printComparisons(w io.Writer, comparisons []Comparison) {
	fmt.Fprintf(w, "\n   the constraints that give RDMA:\n")
	for _, c := range comparisons {
		fmt.Fprintf(w, "\n   %s\n", c.SCC)
		for _, row := range [][2]string{{"for", c.When}, {"allows", c.Allows}, {"without", c.Without}, {"cost", c.Cost}} {
			explain(w, row[0], row[1])
		}
	}
}

// printYAML writes the objects that --apply applies. What would reboot nodes and was
// not asked for is commented out: the output is made to be piped into oc apply.
func (p Plan) printYAML(w io.Writer) error {
	for _, item := range p.Items {
		if len(item.Objects) == 0 {
			continue
		}
		var text strings.Builder
		if err := step.WriteObjects(&text, item.Objects); err != nil {
			return err
		}
		fmt.Fprintf(w, "# %s\n", item.What)
		if item.Applied {
			fmt.Fprint(w, text.String())
			continue
		}
		fmt.Fprintf(w, "# Left out: every node of pool %s would reboot. --reboot-pool=%s writes it.\n", item.Reboots, item.Reboots)
		for line := range strings.Lines(text.String()) {
			fmt.Fprint(w, "# ", line)
		}
	}
	return nil
}
