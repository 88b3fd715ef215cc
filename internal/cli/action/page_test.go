// SPDX-License-Identifier: Apache-2.0

package action

import (
	"html/template"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sethvargo/go-githubactions"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// failed returns a receipt of a run whose training prints Markdown, HTML and workflow commands.
func failed() receipt.Receipt {
	loss := []float64{3.5, 2.25}
	tree := agent.State + "/trees/" + strings.Repeat("0a", 32)
	return receipt.Receipt{
		Run: "train-1", Namespace: "ml", Verdict: receipt.Failed, Reason: "RankFailed", Message: "rank 3: <b>no</b>\n# heading",
		Started: time.Date(2026, 2, 3, 12, 0, 0, 0, time.UTC), Ended: time.Date(2026, 2, 3, 12, 5, 0, 0, time.UTC), Commit: "0123abc",
		Phases: []receipt.Phase{{Name: "train", Status: "Failed", Reason: "RankFailed", Seconds: 61.4}},
		Nodes: []receipt.Node{{KubernetesNode: "gpu-1", GPUs: []string{"a", "b"}, Model: "NVIDIA H100"},
			{Node: 1, KubernetesNode: "gpu-2", GPUs: []string{"c", "d"}}},
		Ranks: []receipt.Rank{{Rank: 3, Node: 1, Tail: []string{"</pre><script>", "", "ValueError"}}},
		Cause: &cause.Culprit{Rank: 3, Node: 1, Python: &agent.PythonError{Type: "ValueError", Message: "100% nan", File: tree +
			"/model/train.py", Line: 12}},
		Metrics: []byte(`{"loss":2.25}`),
		Curve:   &metrics.Curve{Points: []metrics.Point{{Step: 1, Loss: &loss[0]}, {Step: 2}, {Step: 3, Loss: &loss[1]}}},
		Fabric: &fabric.Report{Verdict: fabric.Pass, Bandwidth: 90e9, Expected: 97e9, Measurements: []fabric.Measurement{
			{Operation: fabric.AllReduce, Scope: fabric.World, Bytes: 1 << 20, Ranks: 4, Time: time.Millisecond},
			{Operation: fabric.AllReduce, Scope: fabric.World, Bytes: 1 << 30, Ranks: 4, Time: 18 * time.Millisecond},
		}},
	}
}

// written returns what a page writes about a receipt: the log, and the files of a runner.
func written(t *testing.T, r receipt.Receipt) (log, outputs, summary string) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"GITHUB_OUTPUT": filepath.Join(dir, "output"), "GITHUB_STEP_SUMMARY": filepath.Join(dir, "summary"),
		"RUNNER_TEMP": dir}
	getenv := func(name string) string { return files[name] }
	var out strings.Builder
	p := page{gh: githubactions.New(githubactions.WithWriter(&out), githubactions.WithGetenv(getenv)), getenv: getenv}
	p.outputs(r)
	p.annotate(r)
	if err := p.writeReport(r); err != nil {
		t.Fatal(err)
	}
	if err := p.summarize(r, nil); err != nil {
		t.Fatal(err)
	}
	var texts [2]string
	for i, name := range []string{"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"} {
		content, err := os.ReadFile(files[name])
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = strings.ReplaceAll(string(content), dir, "TEMP")
	}
	return out.String(), strings.ReplaceAll(texts[0], delimiter, "END"), texts[1]
}

func TestPage(t *testing.T) {
	log, outputs, summary := written(t, failed())
	if diff := cmp.Diff("::error file=model/train.py,line=12,title=RankFailed::rank 3 on node 1: ValueError: 100%25 nan\n", log); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	for _, want := range []string{"verdict<<END\nFailed\nEND\n", "receipt<<END\ntrain-1-receipt\nEND\n", "bandwidth<<END\n90.000\nEND\n",
		"report<<END\nTEMP/mlenv-train-1.html\nEND\n", "metrics<<END\n{\"loss\":2.25}\nEND\n"} {
		if !strings.Contains(outputs, want) {
			t.Errorf("outputs are\n%swant %q", outputs, want)
		}
	}
	want := `<h3>❌ <code>train-1</code>: Failed (<code>RankFailed</code>)</h3>
<pre>rank 3: &lt;b&gt;no&lt;/b&gt;&#10;# heading</pre>
<table>
<tr><th align="left">commit</th><td><code>0123abc</code></td></tr>
<tr><th align="left">nodes</th><td><code>2 nodes with 2 GPUs each, NVIDIA H100: gpu-1, gpu-2</code></td></tr>
<tr><th align="left">network</th><td><code>pass</code></td></tr>
<tr><th align="left">bus bandwidth</th><td><code>90.0 GB/s, expected 97.0 GB/s</code></td></tr>
<tr><th align="left">metrics</th><td><code>{&#34;loss&#34;:2.25}</code></td></tr>
<tr><th align="left">receipt</th><td><code>configmap ml/train-1-receipt</code></td></tr>
</table>
<table>
<tr><th align="left">phase</th><th align="left">status</th><th align="right">time</th></tr>
<tr><td><code>train</code></td><td><code>Failed RankFailed</code></td><td align="right">1m1s</td></tr>
</table>
<details><summary>The last lines of rank 3</summary>
<pre>&lt;/pre&gt;&lt;script&gt;&#10;&#10;ValueError</pre>
</details>


` + "```mermaid" + `
xychart-beta
  title "Loss, by step"
  x-axis 1 --> 3
  y-axis "loss"
  line [3.5, 2.25]
` + "```" + `


` + "```mermaid" + `
xychart-beta
  title "Bus bandwidth of all_reduce, by size"
  x-axis ["1.0 MB", "1.1 GB"]
  y-axis "GB/s"
  line [1.573, 89.478]
  line [97.000, 97.000]
` + "```" + `

`
	if diff := cmp.Diff(want, summary); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}

// FuzzSummary lets a training print anything. The summary stays one block of HTML with the same lines, and has no elements
// except the program's own.
func FuzzSummary(f *testing.F) {
	f.Add("\n\n# heading\n[link](https://evil.test)")
	f.Add("</pre>\r\n\r\n<img src=x onerror=alert(1)>")
	f.Add("```\n@everyone\x1b[31m")
	f.Fuzz(func(t *testing.T, text string) {
		r := failed()
		r.Curve, r.Fabric = nil, nil
		lines, elements := countsOf(t, r)
		r.Message, r.Commit, r.Phases[0].Reason, r.Nodes[0].KubernetesNode = "x"+text, "x"+text, fail.Reason(text), text
		r.Ranks[0].Tail = []string{"x" + text, text}
		gotLines, gotElements := countsOf(t, r)
		if gotLines != lines || gotElements != elements {
			t.Errorf("%q makes %d lines and %d elements of %d and %d", text, gotLines, gotElements, lines, elements)
		}
	})
}

// countsOf counts the lines and the elements of a summary, and fails if an empty line precedes its charts.
func countsOf(t *testing.T, r receipt.Receipt) (lines, elements int) {
	t.Helper()
	var text strings.Builder
	if err := template.Must(template.New("").Parse(summaryTemplate)).Execute(&text, summaryOf(r)); err != nil {
		t.Fatal(err)
	}
	block := strings.TrimRight(text.String(), "\n")
	for line := range strings.SplitSeq(strings.ReplaceAll(block, "\r", "\n"), "\n") {
		lines++
		if strings.TrimSpace(line) == "" {
			t.Errorf("an empty line ends the HTML:\n%s", block)
		}
	}
	return lines, strings.Count(block, "<")
}

// The action omits a value that contains the delimiter of the outputs file, and warns.
func TestOutputThatEndsItself(t *testing.T) {
	r := failed()
	r.Reason = "x\n" + delimiter + "\nverdict=Succeeded"
	log, outputs, _ := written(t, r)
	if strings.Contains(outputs, "verdict=Succeeded") || !strings.Contains(log, "::warning::Output reason is left out") {
		t.Errorf("log %q, outputs %q", log, outputs)
	}
}

func TestPageWithoutRunner(t *testing.T) {
	none := func(string) string { return "" }
	p := page{gh: githubactions.New(githubactions.WithWriter(&strings.Builder{}), githubactions.WithGetenv(none)), getenv: none}
	p.outputs(failed())
	if err := p.writeReport(failed()); err != nil {
		t.Error(err)
	}
	if err := p.summarize(failed(), nil); err != nil {
		t.Error(err)
	}
}

// Mermaid's charts have no numbers with exponents.
func TestLossChartHasNoExponents(t *testing.T) {
	curve := metrics.Curve{Points: []metrics.Point{{Step: 10, Loss: new(5e-05)}, {Step: 2e6, Loss: new(1234567.0)}}}
	if got := lossChart(curve); !strings.Contains(got, "x-axis 10 --> 2000000\n") || !strings.Contains(got, "line [0.00005, 1234570]\n") {
		t.Errorf("got %s", got)
	}
}
