package action

import (
	"cmp"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/words"
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
		add("network", string(r.Fabric.Verdict)+" "+cmp.Or(r.Fabric.Message, r.Fabric.Transport))
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
	if r.Fabric != nil {
		s.Charts = template.HTML(bandwidthChart(*r.Fabric)) //nolint:gosec // numbers and words of ours
	}
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
	model := cmp.Or(r.Nodes[0].Model, "GPU")
	return fmt.Sprintf("%s with %s: %s", words.Count(len(names), "node"), words.Count(len(r.Nodes[0].GPUs), model), strings.Join(names, ", "))
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
			sizes = append(sizes, fmt.Sprintf("%q", words.Bytes(int64(m.Bytes))))
			reached = append(reached, gigabytes(m.Bandwidth()))
			expected = append(expected, gigabytes(r.Expected))
		}
	}
	if len(sizes) < 2 {
		return ""
	}
	line := func(values []string) string { return "  line [" + strings.Join(values, ", ") + "]\n" }
	chart := "\n\n```mermaid\nxychart-beta\n  title \"Bus bandwidth of all_reduce, by size\"\n" +
		"  x-axis [" + strings.Join(sizes, ", ") + "]\n  y-axis \"GB/s\"\n" + line(reached)
	if r.Expected > 0 {
		chart += line(expected)
	}
	return chart + "```\n"
}

// gigabytes is a bandwidth in GB/s, without the unit.
func gigabytes(b rdma.BytesPerSecond) string {
	return fmt.Sprintf("%.3f", float64(b)/float64(rdma.GBps))
}
