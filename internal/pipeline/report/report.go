// Package report makes one HTML file of a receipt, for people: how the run went, in
// pictures, and why it failed.
//
// The file needs nothing else: no script, no font, no picture is loaded, and its own policy
// forbids the browser to load any, so that it can be mailed, kept, and opened anywhere. What
// a receipt carries of users' programs, as the last lines of a rank, is text in it and
// nothing else.
package report

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/chart"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

//go:embed page.html style.css
var files embed.FS

// page is what the template shows. Its parts say in a sentence why they have nothing.
type page struct {
	Style template.CSS
	// Run is the run's name, From its name with the namespace.
	Run, From string
	Reason    string
	Verdict   verdict
	Facts     []fact
	Failure   *failure
	Phases    phases
	Training  training
	Network   network
	Nodes     nodes
	Settings  []fact
	Places    []fact
}

// fact is a name and a value. The value is shown as code where people would copy it.
type fact struct {
	Name, Value string
	Code        bool
}

// verdict is how a run ended, in a word, a sign that needs no colour, and a class.
type verdict struct {
	Word, Sign, Class string
}

// Write writes the report of a run. The bytes are the same for the same receipt.
func Write(w io.Writer, r receipt.Receipt) error {
	r, err := readable(r)
	if err != nil {
		return err
	}
	style, err := files.ReadFile("style.css")
	if err != nil {
		return fmt.Errorf("reading the report's style: %w", err)
	}
	parsed, err := template.New("page.html").ParseFS(files, "page.html")
	if err != nil {
		return fmt.Errorf("reading the report's template: %w", err)
	}
	p := page{
		Style:    template.CSS(string(style) + chart.CSS), // both are this program's own
		Run:      cut(cmp.Or(r.Run, r.Environment), mostLine),
		From:     cut(r.Namespace+"/"+r.Run, mostLine),
		Reason:   cut(r.Reason, mostLine),
		Verdict:  verdictOf(r),
		Facts:    facts(r),
		Failure:  failureOf(r),
		Phases:   phasesOf(r),
		Training: trainingOf(r),
		Network:  networkOf(r),
		Nodes:    nodesOf(r),
		Settings: settings(r),
		Places:   places(r),
	}
	if err := parsed.Execute(w, p); err != nil {
		return fmt.Errorf("writing the report of %s: %w", r.Run, err)
	}
	return nil
}

func verdictOf(r receipt.Receipt) verdict {
	switch r.Verdict {
	case receipt.Succeeded:
		return verdict{"Succeeded", "✓", "good"}
	case receipt.Failed:
		return verdict{"Failed", "✗", "bad"}
	}
	return verdict{"No verdict yet", "…", "open"}
}

// facts are the run in short.
func facts(r receipt.Receipt) []fact {
	list := []fact{{Name: "Namespace", Value: r.Namespace}, {Name: "Environment", Value: r.Environment}}
	list = append(list, fact{Name: "Started", Value: stamp(r.Started)}, fact{Name: "Ended", Value: stamp(r.Ended)})
	if !r.Started.IsZero() && r.Ended.After(r.Started) {
		list = append(list, fact{Name: "Took", Value: humanize.Duration(r.Ended.Sub(r.Started))})
	}
	list = append(list, fact{Name: "Network", Value: r.Mode}, fact{Name: "Nodes", Value: count(len(r.Nodes))}, fact{Name: "Ranks", Value: count(len(r.Ranks))})
	if c := r.Curve; c != nil {
		if loss := lastLoss(c); loss != "" {
			list = append(list, fact{Name: "Last loss", Value: loss})
		}
		if c.StepTime > 0 {
			list = append(list, fact{Name: "Step time, median", Value: step(c.StepTime)})
		}
	}
	if f := r.Fabric; f != nil && f.Bandwidth > 0 {
		list = append(list, fact{Name: "Bus bandwidth", Value: f.Bandwidth.String()})
	}
	return withValues(list)
}

// withValues leaves out facts without a value, and cuts the others short.
func withValues(list []fact) (result []fact) {
	for _, f := range list {
		if f.Value != "" {
			result = append(result, fact{cut(f.Name, mostLine), cut(f.Value, mostText), f.Code})
		}
	}
	return result
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
