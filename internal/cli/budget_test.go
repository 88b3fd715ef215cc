// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// budget is the number of words that a page may have, code blocks and tables included. If you need more, move what is only looked up to
// docs/reference, which has no budget, or delete what no reader acts on.
var budget = map[string]int{
	"CHANGELOG.md": 1100, "CONTRIBUTING.md": 1350, "README.md": 620, "SECURITY.md": 1170,

	"docs/README.md": 60, "docs/faq.md": 400,
	"docs/automate/github.md": 810, "docs/automate/schedule.md": 660, "docs/automate/triggers.md": 690,
	"docs/examples/README.md": 250, "docs/examples/shell/README.md": 60, "docs/examples/transformer/README.md": 420,
	"docs/operate/capacity.md": 1060, "docs/operate/install.md": 1650, "docs/operate/prometheus.md": 480, "docs/operate/rdma.md": 1200,
	"docs/operate/storage.md": 1020,
	"docs/project/README.md":  120, "docs/project/architecture.md": 1050, "docs/project/benchmarks.md": 830, "docs/project/culprits.md": 670,
	"docs/project/faults.md": 1300, "docs/project/from-scripts.md": 950, "docs/project/non-goals.md": 400, "docs/project/programs.md": 330,
	"docs/project/releasing.md": 560, "docs/project/scale.md": 670, "docs/project/unproven.md": 1150,
	"docs/start/concepts.md": 430, "docs/start/demo.md": 480, "docs/start/local.md": 720, "docs/start/quickstart.md": 420,
	"docs/train/develop.md": 1100, "docs/train/fix.md": 2150, "docs/train/images.md": 280, "docs/train/restarts.md": 1000,
	"docs/train/runs.md": 950, "docs/train/saving.md": 610, "docs/train/script.md": 800,

	"pipelines/dev-environment/README.md": 620, "pipelines/train-multi-node/README.md": 1150,
	"tasks/mlenv-build-image/README.md": 700, "tasks/mlenv-build-image/images/README.md": 850, "tasks/mlenv-check-fabric/README.md": 1170,
	"tasks/mlenv-preflight/README.md": 850, "tasks/mlenv-provision/README.md": 560, "tasks/mlenv-sync-repo/README.md": 600,
	"tasks/mlenv-teardown/README.md": 310, "tasks/mlenv-train/README.md": 710, "test/localcluster/README.md": 1500,
}

// TestBudget keeps the pages that are read short. Reference pages and measurements, which are looked up, may be long.
func TestBudget(t *testing.T) {
	const slack = 1.05
	root, seen := filepath.Join("..", ".."), map[string]bool{}
	eachPage(t, func(path, text string) {
		page, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		words, has := len(strings.Fields(text)), budget[page]
		switch seen[page] = true; {
		case strings.HasPrefix(page, "docs/reference/"), strings.HasPrefix(page, "test/bench/results/"):
		case has == 0:
			t.Errorf("%s: %d words and no budget: give it one, or put it into docs/reference", page, words)
		case float64(words) > slack*float64(has):
			t.Errorf("%s: %d words, want at most %d and 5%%", page, words, has)
		}
	})
	for page := range budget {
		if !seen[page] {
			t.Errorf("%s has a budget and does not exist", page)
		}
	}
}
