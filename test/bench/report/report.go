// SPDX-License-Identifier: Apache-2.0

// Package report writes the tables of benchmarks into pages, with the date, the commit and the machine of the measurement.
package report

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// Page is a page with tables that a make target writes with BENCH_FLAGS=-update.
type Page struct {
	// Path is relative to the working folder.
	Path string
	// Target is the make target.
	Target string
}

// Print prints a table, with facts about the machine below it. The flag -update writes it into the section of the page with that name, if
// there is a name.
func (p Page) Print(t testing.TB, name string, rows [][]string, facts []string) {
	t.Helper()
	var text strings.Builder
	for i, cells := range rows {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			text.WriteString(strings.Repeat("| --- ", len(cells)) + "|\n")
		}
	}
	if len(facts) > 0 {
		fmt.Fprintf(&text, "\n%s.\n", strings.Join(facts, "; "))
	}
	fmt.Print("\n", text.String())
	if name == "" {
		return
	}
	golden.Section(t, p.Path, "<!-- "+name+": written by make "+p.Target+" BENCH_FLAGS=-update -->\n", text.String())
}

// When returns the date and the commit, which belong into the first cell of a table.
func When() string {
	commit, err := exec.Command("git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty").Output()
	if err != nil {
		commit = []byte("an unknown commit")
	}
	return fmt.Sprintf("on %s, at %s", time.Now().UTC().Format(time.DateOnly), strings.TrimSpace(string(commit)))
}

// Machine describes the machine, what a measurement shares it with, and its load now, which affect the measurement.
func Machine(sharedBy string) (facts []string) {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(text); found != nil {
			model = string(found[1])
		}
	}
	facts = append(facts, fmt.Sprintf("%d cores (%s) shared by %s, %s", runtime.NumCPU(), model, sharedBy, runtime.Version()))
	var load float64
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if _, err := fmt.Sscan(string(text), &load); err == nil {
			facts = append(facts, fmt.Sprintf("before the start, %.1f threads on average needed a core; unless that is close to 0, other programs "+
				"disturbed the measurement", load))
		}
	}
	return facts
}
