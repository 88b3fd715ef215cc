// SPDX-License-Identifier: Apache-2.0

// Package report renders a receipt as one HTML file: the course of the run in pictures, and why it failed.
//
// The page loads nothing, and its content security policy keeps the browser from loading anything. Output of users'
// programs is always text.
package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/chart"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

//go:embed style.css
var style string

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is the data of the template. A part without content has a sentence with the reason.
type page struct {
	Style template.CSS
	// Run is the run's name, From its namespace and name.
	Run, From string
	Reason    string
	Verdict   badge
	Facts     []fact
	Failure   *failure
	Phases    phases
	Training  training
	Network   network
	Nodes     nodes
	Settings  []fact
	Remains   []fact
}

// fact is a name and a value, which is code if users would copy it.
type fact struct {
	Name, Value string
	Code        bool
}

// badge is how a run ended: a word, a sign that is readable without colors, and a CSS class.
type badge struct {
	Word, Sign, Class string
}

// Write writes the report of a run. The same receipt gives the same bytes.
func Write(w io.Writer, r receipt.Receipt) error {
	r, err := readable(r)
	if err != nil {
		return err
	}
	return pageTemplate.Execute(w, page{
		Style:    template.CSS(style + chart.CSS), // both are constants of this program
		Run:      truncate(cmp.Or(r.Run, r.Environment), mostLine),
		From:     truncate(r.DisplayName(), mostLine),
		Reason:   truncate(r.Reason, mostLine),
		Verdict:  badgeOf(r),
		Facts:    facts(r),
		Failure:  failureOf(r),
		Phases:   phasesOf(r),
		Training: trainingOf(r),
		Network:  networkOf(r),
		Nodes:    nodesOf(r),
		Settings: settings(r),
		Remains:  remains(r),
	})
}

func badgeOf(r receipt.Receipt) badge {
	switch r.Verdict {
	case receipt.Succeeded:
		return badge{"Succeeded", "✓", "good"}
	case receipt.Failed:
		return badge{"Failed", "✗", "bad"}
	}
	return badge{"No verdict yet", "…", "open"}
}

func facts(r receipt.Receipt) []fact {
	list := []fact{
		{Name: "Warning", Value: r.Warning},
		{Name: "Namespace", Value: r.Namespace},
		{Name: "Environment", Value: r.Environment},
		{Name: "Started", Value: FormatTime(r.Started)},
		{Name: "Ended", Value: FormatTime(r.Ended)},
		{Name: "Took", Value: onlyIf(!r.Started.IsZero() && r.Ended.After(r.Started), humanize.Duration(r.Ended.Sub(r.Started)))},
		{Name: "Network", Value: string(r.Mode)},
		{Name: "Nodes", Value: onlyIf(len(r.Nodes) > 0, fmt.Sprint(len(r.Nodes)))},
		{Name: "Ranks", Value: onlyIf(r.WorldSize() > 0, fmt.Sprint(r.WorldSize()))},
	}
	if c := r.Curve; c != nil {
		list = append(list, fact{Name: "Last loss", Value: lastLoss(c)},
			fact{Name: "Step time, median", Value: onlyIf(c.StepTime > 0, axisStep(c.StepTime))})
	}
	if f := r.Fabric; f != nil {
		list = append(list, fact{Name: "Bus bandwidth", Value: onlyIf(f.Bandwidth > 0, f.Bandwidth.String())})
	}
	return withValues(list)
}

// withValues drops facts without a value, and shortens the others.
func withValues(list []fact) (result []fact) {
	for _, f := range list {
		if f.Value != "" {
			result = append(result, fact{truncate(f.Name, mostLine), truncate(f.Value, mostText), f.Code})
		}
	}
	return result
}

// onlyIf returns the value of a fact, "" if it is not known.
func onlyIf(known bool, value string) string {
	if known {
		return value
	}
	return ""
}

// FormatTime formats a time, "" for none.
func FormatTime(t time.Time) string {
	return onlyIf(!t.IsZero(), t.UTC().Format("2006-01-02 15:04:05 UTC"))
}

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
	for _, a := range r.Attempts {
		list = append(list, fact{Name: fmt.Sprintf("Attempt %d", a.Attempt), Value: receipt.Describe(a)})
	}
	list = append(list,
		fact{Name: "Repository", Value: r.Repository, Code: true},
		fact{Name: "Commit", Value: r.Commit, Code: true},
		fact{Name: "Tree", Value: r.Tree, Code: true},
		fact{Name: "Image", Value: r.Image, Code: true},
		fact{Name: "Network", Value: string(r.Mode)},
		fact{Name: "Storage", Value: string(r.Storage)},
		fact{Name: "Excluded nodes", Value: strings.Join(r.ExcludedNodes, ", ")})
	names, more := atMost(slices.Sorted(maps.Keys(r.NCCL)), mostSettings, "variables")
	for _, name := range names {
		list = append(list, fact{Name: name, Value: r.NCCL[name], Code: true})
	}
	return withValues(append(list, fact{Name: "More", Value: more}))
}

// remains returns what the run has left, and where.
func remains(r receipt.Receipt) []fact {
	var list []fact
	if r.Record != nil {
		list = append(list, fact{Name: "Record", Value: r.Record.Folder, Code: true},
			fact{Name: "On the claims", Value: strings.Join(r.Record.Claims, ", "), Code: true})
	}
	return withValues(append(list, fact{Name: "Teardown", Value: r.Teardown},
		fact{Name: "Unfinished", Value: onlyIf(r.Ended.IsZero(), "The run's teardown had not ended when this receipt was written.")}))
}
