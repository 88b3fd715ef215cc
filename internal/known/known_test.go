// SPDX-License-Identifier: Apache-2.0

package known

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestPageIsCurrent compares docs/reference/known.md with the rows.
func TestPageIsCurrent(t *testing.T) {
	var page strings.Builder
	page.WriteString(`# What others print

Messages of other programs that ml-dev-env knows, in the order in which it looks for them. It adds the meaning and the advice to its own
message. Only what shows a fault of a node leaves that node out. Written by "go test ./internal/known -update" from the rows in
internal/known/*.yaml: a new case is one row with an example.
`)
	for _, section := range []struct {
		title string
		rows  Table
	}{{"A rank's words", Words()}, {"Pods, queues and device plugins", Pods()}, {"Builds and installations", Builds()}} {
		fmt.Fprintf(&page, "\n## %s\n\n| message, for example | at fault | reason | meaning | next |\n| --- | --- | --- | --- | --- |\n",
			section.title)
		for _, row := range section.rows {
			final, probable := "", ""
			if row.Final {
				final = ", final"
			}
			if row.Probable {
				probable = ", probably"
			}
			fmt.Fprintf(&page, "| `%s` | %s%s | %s%s | %s | %s |\n", example(row.Examples[0]), row.Whose, final, row.Reason, probable,
				cell(row.Means), cell(row.Next))
		}
	}
	golden.File(t, "../../docs/reference/known.md", page.String())
}

func example(text string) string {
	return strings.NewReplacer("|", `\|`, "`", "'").Replace(humanize.OneLine(text, 100))
}

// cell returns the text of a cell of a table in Markdown.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "{", "`{", "}", "}`").Replace(text)
}

func TestRows(t *testing.T) {
	reasons, err := os.ReadFile("../../docs/reference/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	for source, table := range map[string]Table{"words": Words(), "pods": Pods(), "builds": Builds()} {
		ids := map[string]bool{}
		for _, row := range table {
			at := source + " " + row.ID
			if ids[row.ID] {
				t.Errorf("%s: two rows have that name", at)
			}
			ids[row.ID] = true
			if row.ID == "" || len(row.Patterns) == 0 || len(row.Examples) == 0 || row.From == "" {
				t.Errorf("%s: want a name, a pattern, an example, and where the text comes from", at)
			}
			if !slices.Contains([]Whose{"rank", Peer, Node, "fabric", "image", "cluster", Request}, row.Whose) {
				t.Errorf("%s: whose is %q", at, row.Whose)
			}
			if row.Reason != "" && !strings.Contains(string(reasons), "| "+string(row.Reason)+" |") {
				t.Errorf("%s: %s is no reason of the list", at, row.Reason)
			}
			for _, example := range row.Examples {
				for _, kind := range append(strings.Fields(row.Of), "")[:max(1, len(strings.Fields(row.Of)))] {
					if found, _ := table.FindOf(kind, example); found.ID != row.ID {
						t.Errorf("%s: row %q fits %q first", at, found.ID, example)
					}
				}
			}
		}
	}
}

// TestAdvice looks up what has an advice of its own.
func TestAdvice(t *testing.T) {
	for words, want := range map[string]string{
		"train.py: error: unrecognized arguments: --deepspeed":                                               "add_config_arguments",
		"InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')": "image",
		"RuntimeError: Error building extension 'fused_adam'":                                                "image",
		"bash: line 1: g++: command not found":                                                               "image",
	} {
		if row, _ := Words().Find(words); !strings.Contains(row.Next, want) {
			t.Errorf("%q: the advice is %q, want %q in it", words, row.Next, want)
		}
	}
}

// TestNoRow looks up words that have a part of a known message by accident, such as the line or the folder of a script.
func TestNoRow(t *testing.T) {
	for _, words := range []string{
		"huggingface_hub.errors.HfHubHTTPError: 500 Server Error for url: https://huggingface.co/api\n" +
			"  File \"/work/train.py\", line 429, in main",
		"ValueError: the loss is nan\n  File \"/dev/shm/train.py\", line 3, in <module>",
	} {
		if row, ok := Words().Find(words); ok {
			t.Errorf("row %s fits %q", row.ID, words)
		}
	}
}
