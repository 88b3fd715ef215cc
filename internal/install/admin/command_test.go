package admin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/install"
)

func TestPrintNext(t *testing.T) {
	rebooting := own(t)
	rebooting.Reboot = true
	changes := []install.Change{{Object: "serviceaccount/ml-dev-sa", Outcome: install.Unchanged}, {Object: "machineconfig/99-worker-crio-memlock", Outcome: install.Created}}
	tests := []struct {
		name     string
		r        Request
		changes  []install.Change
		warnings []string
		want     string
	}{
		{"a second time", rebooting, changes[:1], nil, "nothing was changed: everything is in place already\n"},
		{"with a reboot", rebooting, changes, []string{"ranges overlap"}, `warning: ranges overlap

the nodes of pool worker that lack a MachineConfig reboot now, one after the other

to see what is in place and how far the nodes are: mlenv admin status clusters/barcelona.yaml -n team --service-account=ml-dev-sa --pool=worker
`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got strings.Builder
			printNext(&got, test.r, test.changes, test.warnings)
			if diff := cmp.Diff(test.want, got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestStatusTable(t *testing.T) {
	status := Status{Rows: []Row{{"serviceaccount/ml-dev-sa", InPlace, ""}, {"machineconfig/99-worker-crio-memlock", NotApplied, "needed"}}, Warnings: []string{"x"}}
	var got strings.Builder
	status.print(&got)
	want := "in place     serviceaccount/ml-dev-sa              \nnot applied  machineconfig/99-worker-crio-memlock  needed\nwarning: x\n"
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
