// SPDX-License-Identifier: Apache-2.0

package action

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/report"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// summaryTemplate is one block of HTML, in which Markdown has no meaning. An empty line would end the block, so the
// template has none, and its texts come from literal. They stand in code or pre, where GitHub makes no links and mentions.
const summaryTemplate = `<h3>{{if .Succeeded}}✅{{else}}❌{{end}} <code>{{.Run}}</code>: {{.Verdict}}{{with .Reason}} ` +
	`(<code>{{.}}</code>){{end}}</h3>
{{- with .Message}}
<pre>{{.}}</pre>
{{- end}}
<table>
{{- range .Facts}}
<tr><th align="left">{{.Name}}</th><td><code>{{.Value}}</code></td></tr>
{{- end}}
</table>
<table>
<tr><th align="left">phase</th><th align="left">status</th><th align="right">time</th></tr>
{{- range .Phases}}
<tr><td><code>{{.Name}}</code></td><td><code>{{.Status}}</code></td><td align="right">{{.Took}}</td></tr>
{{- end}}
</table>
{{- with .Tail}}
<details><summary>The last lines of rank {{$.TailRank}}</summary>
<pre>{{.}}</pre>
</details>
{{- end}}
{{.Charts}}`

// literal returns text as HTML that shows it and nothing else. Its line breaks become entities, so that none of its lines is
// a line of the summary; such a line could end the block of HTML and become Markdown.
func literal[T ~string](text T) template.HTML {
	escaped := html.EscapeString(humanize.Plain(string(text)))
	return template.HTML(strings.ReplaceAll(escaped, "\n", "&#10;")) //nolint:gosec // it is escaped
}

type fact struct {
	Name  string
	Value template.HTML
}

type summary struct {
	Run, Reason, Message template.HTML
	Verdict              receipt.Verdict
	Succeeded            bool
	Facts                []fact
	Phases               []phase
	Tail                 template.HTML
	TailRank             int
	// Charts contains only numbers, and words of this program.
	Charts template.HTML
}

type phase struct {
	Name, Status template.HTML
	Took         string
}

func summaryOf(r receipt.Receipt) summary {
	s := summary{Run: literal(r.Run), Verdict: r.Verdict, Reason: literal(r.Reason), Message: literal(r.Message),
		Succeeded: r.Verdict == receipt.Succeeded}
	add := func(name, value string) {
		if value != "" {
			s.Facts = append(s.Facts, fact{name, literal(value)})
		}
	}
	add("commit", r.Commit)
	add("image", r.Image)
	add("nodes", nodesOf(r))
	add("mode", string(r.Mode))
	if r.Network != nil {
		add("transport of the training", string(r.Network.Transport))
	}
	if r.Fabric != nil {
		add("network", strings.TrimSpace(string(r.Fabric.Verdict)+" "+cmp.Or(r.Fabric.Message, r.Fabric.Transport)))
		add("bus bandwidth", bandwidthOf(*r.Fabric))
	}
	add("metrics", string(r.Metrics))
	add("receipt", "configmap "+r.Namespace+"/"+receipt.Name(r.Run))
	if r.Record != nil {
		add("logs and checkpoints", fmt.Sprintf("%s on %s", r.Record.Folder, strings.Join(r.Record.Claims, ", ")))
	}
	for _, p := range r.Phases {
		took := ""
		if p.Seconds > 0 {
			took = time.Duration(p.Seconds * float64(time.Second)).Round(time.Second).String()
		}
		s.Phases = append(s.Phases, phase{literal(p.Name), literal(strings.TrimSpace(string(p.Status) + " " + string(p.Reason))), took})
	}
	if r.Cause != nil {
		for _, rank := range r.Ranks {
			if rank.Rank == r.Cause.Rank {
				s.Tail, s.TailRank = literal(strings.TrimSpace(report.LastLines(rank.Tail))), rank.Rank
			}
		}
	}
	var charts string
	if r.Curve != nil {
		charts += lossChart(*r.Curve)
	}
	if r.Fabric != nil {
		charts += bandwidthChart(*r.Fabric)
	}
	s.Charts = template.HTML(charts) //nolint:gosec // numbers and words of this program
	return s
}

func nodesOf(r receipt.Receipt) string {
	if len(r.Nodes) == 0 {
		return ""
	}
	names := humanize.Each(r.Nodes, func(n receipt.Node) string { return n.KubernetesNode })
	model := cmp.Or(r.Nodes[0].Model, "unknown model")
	return fmt.Sprintf("%s with %s each, %s: %s", humanize.Count(len(names), "node"), humanize.Count(len(r.Nodes[0].GPUs), "GPU"), model,
		strings.Join(names, ", "))
}

func bandwidthOf(r fabric.Report) string {
	if r.Bandwidth == 0 {
		return ""
	}
	text := r.Bandwidth.String()
	if r.Expected > 0 {
		text += ", expected " + r.Expected.String()
	}
	return text
}

// bandwidthChart returns the bus bandwidth of all_reduce over all ranks by size, "" for fewer than two sizes.
func bandwidthChart(r fabric.Report) string {
	var sizes, reached, expected []string
	for _, m := range r.Measurements {
		if m.Operation == fabric.AllReduce && m.Scope == fabric.World {
			sizes = append(sizes, fmt.Sprintf("%q", humanize.Bytes(int64(m.Bytes))))
			reached = append(reached, gigabytes(m.Bandwidth()))
			expected = append(expected, gigabytes(r.Expected))
		}
	}
	if len(sizes) < 2 {
		return ""
	}
	lines := [][]string{reached}
	if r.Expected > 0 {
		lines = append(lines, expected)
	}
	return chart("Bus bandwidth of all_reduce, by size", "["+strings.Join(sizes, ", ")+"]", "GB/s", lines...)
}

// lossChart returns the loss by step, "" for fewer than two finite values.
func lossChart(c metrics.Curve) string {
	var losses []string
	var first, last float64
	for _, point := range c.Points {
		if point.Loss == nil {
			continue // xychart has no gaps; the report shows them
		}
		if len(losses) == 0 {
			first = point.Step
		}
		last = point.Step
		losses = append(losses, decimal(*point.Loss))
	}
	if len(losses) < 2 {
		return ""
	}
	return chart("Loss, by step", decimal(first)+" --> "+decimal(last), "loss", losses)
}

// decimal returns a number with six digits that count, without an exponent, which Mermaid does not read.
func decimal(x float64) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 6, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// chart returns a Mermaid xychart, which GitHub draws. The empty line in front ends the HTML.
func chart(title, across, up string, lines ...[]string) string {
	text := fmt.Sprintf("\n\n```mermaid\nxychart-beta\n  title %q\n  x-axis %s\n  y-axis %q\n", title, across, up)
	for _, values := range lines {
		text += "  line [" + strings.Join(values, ", ") + "]\n"
	}
	return text + "```\n"
}

// gigabytes returns a bandwidth in GB/s, without the unit.
func gigabytes(b rdma.BytesPerSecond) string {
	return fmt.Sprintf("%.3f", float64(b)/float64(rdma.GBps))
}
