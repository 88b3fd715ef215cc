package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// settings are what the run was made with.
func settings(r receipt.Receipt) []fact {
	var list []fact
	if t := r.Training; t != nil {
		command := t.Script
		if len(t.Args) > 0 {
			command += " " + strings.Join(t.Args, " ")
		}
		list = append(list, fact{Name: "Script", Value: command, Code: true}, fact{Name: "Launcher", Value: string(t.Launcher)},
			fact{Name: "Size", Value: fmt.Sprintf("%d × %d ranks", t.Nodes, t.RanksPerNode)})
	}
	list = append(list,
		fact{Name: "Repository", Value: r.Repository, Code: true},
		fact{Name: "Commit", Value: r.Commit, Code: true},
		fact{Name: "Tree", Value: r.Tree, Code: true},
		fact{Name: "Image", Value: r.Image, Code: true},
		fact{Name: "Network", Value: r.Mode},
		fact{Name: "Storage", Value: r.Storage})
	names, more := first(slices.Sorted(maps.Keys(r.NCCL)), mostSettings, "variables")
	for _, name := range names {
		list = append(list, fact{Name: name, Value: r.NCCL[name], Code: true})
	}
	return withValues(append(list, fact{Name: "And", Value: more}))
}

// places are where the run's things lie.
func places(r receipt.Receipt) []fact {
	var list []fact
	if r.Record != nil {
		list = append(list, fact{Name: "Record", Value: r.Record.Folder, Code: true}, fact{Name: "On the claims", Value: strings.Join(r.Record.Claims, ", "), Code: true})
	}
	list = append(list, fact{Name: "Teardown", Value: r.Teardown})
	if r.Ended.IsZero() {
		list = append(list, fact{Name: "Unfinished", Value: "The run's teardown had not ended when this receipt was written."})
	}
	return withValues(list)
}
