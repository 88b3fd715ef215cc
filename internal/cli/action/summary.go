package action

import (
	"cmp"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// summaryTemplate is HTML, in which Markdown has no meaning, but for the picture: what a
// training printed cannot become links or headings. No line of it is empty, as an
// empty line ends the HTML.
const summaryTemplate = `<h3>{{if .Succeeded}}✅{{else}}❌{{end}} {{.Run}}: {{.Verdict}}{{with .Reason}} ({{.}}){{end}}</h3>
{{- with .Message}}
<pre>{{.}}</pre>
{{- end}}
<table>
{{- range .Facts}}
<tr><th align="left">{{.Name}}</th><td>{{.Value}}</td></tr>
{{- end}}
</table>
<table>
<tr><th align="left">phase</th><th align="left">status</th><th align="right">time</th></tr>
{{- range .Phases}}
<tr><td>{{.Name}}</td><td>{{.Status}}</td><td align="right">{{.Took}}</td></tr>
{{- end}}
</table>
{{- with .Tail}}
<details><summary>The last lines of rank {{$.TailRank}}</summary>
<pre>{{.}}</pre>
</details>
{{- end}}
{{.Charts}}`

// fact is a row of the first table.
type fact struct{ Name, Value string }

// summary is what the template shows of a receipt.
type summary struct {
	Run, Verdict, Reason, Message string
	Succeeded                     bool
	Facts                         []fact
	Phases                        []phase
	Tail                          string
	TailRank                      int
	// Charts has numbers and words of ours only.
	Charts template.HTML
}

type phase struct{ Name, Status, Took string }

func summaryOf(r receipt.Receipt) summary {
	s := summary{Run: r.Run, Verdict: string(r.Verdict), Reason: r.Reason, Message: r.Message, Succeeded: r.Verdict == receipt.Succeeded}
	add := func(name, value string) {
		if value != "" {
			s.Facts = append(s.Facts, fact{name, value})
		}
	}
	add("commit", r.Commit)
	add("image", r.Image)
	add("nodes", nodesOf(r))
	add("mode", r.Mode)
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
		s.Phases = append(s.Phases, phase{p.Name, strings.TrimSpace(p.Status + " " + p.Reason), took})
	}
	if r.Cause != nil {
		for _, rank := range r.Ranks {
			if rank.Rank == r.Cause.Rank {
				s.Tail, s.TailRank = strings.Join(rank.Tail, "\n"), rank.Rank
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
	s.Charts = template.HTML(charts) //nolint:gosec // numbers and words of ours
	return s
}

func nodesOf(r receipt.Receipt) string {
	if len(r.Nodes) == 0 {
		return ""
	}
	names := make([]string, len(r.Nodes))
	for i, node := range r.Nodes {
		names[i] = node.KubernetesNode
	}
	model := cmp.Or(r.Nodes[0].Model, "of an unknown model")
	return fmt.Sprintf("%s with %s each, %s: %s", humanize.Count(len(names), "node"), humanize.Count(len(r.Nodes[0].GPUs), "GPU"), model, strings.Join(names, ", "))
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

// bandwidthChart is a Mermaid chart, which GitHub draws, of the bus bandwidth of
// all_reduce over all ranks by size; "" where fewer than two sizes were measured.
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

// lossChart is one of the loss by step; "" where it was finite at fewer than two points.
func lossChart(c metrics.Curve) string {
	var losses []string
	var first, last float64
	for _, point := range c.Points {
		if point.Loss == nil {
			continue // xychart knows no gaps; the report shows them
		}
		if len(losses) == 0 {
			first = point.Step
		}
		last = point.Step
		losses = append(losses, fmt.Sprintf("%.6g", *point.Loss))
	}
	if len(losses) < 2 {
		return ""
	}
	return chart("Loss, by step", fmt.Sprintf("%g --> %g", first, last), "loss", losses)
}

// chart is one of Mermaid's xychart, behind an empty line, which ends the HTML before it.
func chart(title, across, up string, lines ...[]string) string {
	text := fmt.Sprintf("\n\n```mermaid\nxychart-beta\n  title %q\n  x-axis %s\n  y-axis %q\n", title, across, up)
	for _, values := range lines {
		text += "  line [" + strings.Join(values, ", ") + "]\n"
	}
	return text + "```\n"
}

// gigabytes is a bandwidth in GB/s, without the unit.
func gigabytes(b rdma.BytesPerSecond) string {
	return fmt.Sprintf("%.3f", float64(b)/float64(rdma.GBps))
}
