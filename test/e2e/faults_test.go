package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestFaultsAreScenarios fails if docs/faults.md names a scenario that does not exist.
func TestFaultsAreScenarios(t *testing.T) {
	page, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile("training_test.go")
	if err != nil {
		t.Fatal(err)
	}
	names, count := regexp.MustCompile("`([a-z-]+)`"), 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, name := range names.FindAllStringSubmatch(cells[2], -1) {
			count++
			if !strings.Contains(string(list), `"`+name[1]+`"`) {
				t.Errorf("docs/faults.md names the scenario %s, which does not exist", name[1])
			}
		}
	}
	if count == 0 {
		t.Error("docs/faults.md names no scenario")
	}
}
