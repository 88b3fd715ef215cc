// SPDX-License-Identifier: Apache-2.0

package action

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sethvargo/go-githubactions"

	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/report"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
)

// delimiter ends a value in the file of outputs. The library always uses this one.
const delimiter = "_GitHubActionsFileCommandDelimeter_"

// page writes the outputs, the annotations and the job's summary. It skips those for which the runner names no file.
type page struct {
	gh     *githubactions.Action
	getenv func(string) string
}

// output sets an output of the action, unless the value contains the delimiter.
func (p page) output(name, value string) {
	switch {
	case p.getenv("GITHUB_OUTPUT") == "":
	case strings.Contains(value, delimiter):
		p.gh.Warningf("Output %s is left out: its value contains %s, which ends values.", name, delimiter)
	default:
		p.gh.SetOutput(name, value)
	}
}

func (p page) outputs(r receipt.Receipt) {
	p.output("receipt", receipt.Name(r.Run))
	p.output("verdict", string(r.Verdict))
	p.output("reason", string(r.Reason))
	p.output("commit", r.Commit)
	p.output("image", r.Image)
	p.output("metrics", string(r.Metrics))
	if r.Fabric != nil && r.Fabric.Bandwidth > 0 {
		p.output("bandwidth", gigabytes(r.Fabric.Bandwidth))
	}
}

// writeReport writes the run's report, which a later step of the workflow can upload.
func (p page) writeReport(r receipt.Receipt) error {
	folder := p.getenv("RUNNER_TEMP")
	if folder == "" {
		return nil
	}
	path := filepath.Join(folder, "mlenv-"+r.Run+".html")
	var text bytes.Buffer
	err := report.Write(&text, r)
	if err == nil {
		err = os.WriteFile(path, text.Bytes(), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the run's report: %w", err)
	}
	p.output("report", path)
	return nil
}

// annotate puts the error of the failed rank at its line of the source.
func (p page) annotate(r receipt.Receipt) {
	switch {
	case r.Verdict == receipt.Succeeded && r.Warning != "":
		p.gh.Warningf("%s", r.Warning)
	case r.Verdict == receipt.Succeeded:
	case r.Cause != nil && r.Cause.Python != nil && r.Cause.Python.File != "":
		at := r.Cause.Python
		p.gh.WithFieldsMap(map[string]string{"file": cause.InTree(at.File), "line": strconv.Itoa(at.Line), "title": string(r.Reason)}).
			Errorf("rank %d on node %d: %s: %s", r.Cause.Rank, r.Cause.Node, at.Type, at.Message)
	default:
		p.gh.WithFieldsMap(map[string]string{"title": string(r.Reason)}).Errorf("%s", r.Message)
	}
}

func (p page) annotateFile(problems cluster.Problems) {
	for _, problem := range problems {
		text := problem.Want
		if problem.Path != "" {
			text = problem.Path + ": " + text
		}
		p.gh.WithFieldsMap(map[string]string{
			"file": problem.File, "line": strconv.Itoa(problem.Line), "col": strconv.Itoa(problem.Column), "title": "InvalidInput",
		}).Errorf("%s", text)
	}
}

// summarize writes the job's summary. compared is nil if the run was compared with nothing.
func (p page) summarize(r receipt.Receipt, compared *trend.BaseComparison) error {
	if p.getenv("GITHUB_STEP_SUMMARY") == "" {
		return nil
	}
	s := summaryOf(r)
	const mostName = 120
	if compared != nil {
		for _, row := range comparisonFacts(*compared) {
			s.Facts = append(s.Facts, fact{humanize.OneLine(row[0], mostName), literal(row[1])})
		}
	}
	if err := p.gh.AddStepSummaryTemplate(summaryTemplate, s); err != nil {
		return fmt.Errorf("writing the job's summary: %w", err)
	}
	return nil
}
