// SPDX-License-Identifier: Apache-2.0

// Package report writes the tables of benchmarks to test/bench/results, with the date, the commit and the machine of the measurement.
package report

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// results is the folder of the tables, in the repository.
const results = "test/bench/results"

// Page is a page of docs/project that quotes rows of tables, which a make target writes with BENCH_FLAGS=-update.
type Page struct {
	// Root is the repository, relative to the working folder.
	Root string
	// Name is the name of the page, without .md.
	Name string
	// Target is the make target.
	Target string
}

// Print prints a table, with facts about the machine below it. If the table has a name, the flag -update writes it to the file of that
// name, and its new rows into the page.
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
	if name == "" || !golden.Updating() {
		return
	}
	golden.File(t, filepath.Join(p.Root, results, name+".md"), "<!-- written by make "+p.Target+" BENCH_FLAGS=-update -->\n\n"+text.String())
	p.Quote(t)
}

// section matches the rows that a page quotes from a table: its head, and rows that their first cells find.
var section = regexp.MustCompile(`(?s)<!-- rows of (\w+) -->\n(.*?)<!-- end -->`)

// Quote fails the test if the rows of the page are not those of the tables. The flag -update writes them.
func (p Page) Quote(t testing.TB) {
	t.Helper()
	path := filepath.Join(p.Root, "docs", "project", p.Name+".md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, path, section.ReplaceAllStringFunc(string(page), func(text string) string {
		found := section.FindStringSubmatch(text)
		table, err := os.ReadFile(filepath.Join(p.Root, results, found[1]+".md"))
		if err != nil {
			t.Fatal(err)
		}
		_, table, _ = bytes.Cut(table, []byte("\n\n"))
		lines := strings.SplitAfter(string(table), "\n")
		quoted := "<!-- rows of " + found[1] + " -->\n" + lines[0] + lines[1]
		for _, row := range strings.SplitAfter(found[2], "\n")[2:] {
			first, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
			for _, line := range lines[2:] {
				if first != "" && strings.HasPrefix(line, "| "+first+" | ") {
					quoted += line
				}
			}
		}
		return quoted + "<!-- end -->"
	}))
}

// commit returns the commit, with -dirty if files differ that can affect a measurement. The benchmark itself changes the others.
var commit = sync.OnceValues(func() (string, error) {
	name, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "an unknown commit", fmt.Errorf("reading the commit: %w", err)
	}
	changed, err := exec.Command("git", "status", "--porcelain", "--", ":/", ":(top,exclude)"+results, ":(top,exclude)docs/project").Output()
	text := strings.TrimSpace(string(name))
	if err == nil && len(changed) > 0 {
		text, err = text+"-dirty", fmt.Errorf("the working tree differs from commit %s, so nobody could reproduce its figures; commit first:\n%s",
			name, changed)
	}
	return text, err
})

// Reproducible fails if the flag -update is set and the working tree is not that of a commit.
func Reproducible() error {
	if _, err := commit(); golden.Updating() {
		return err
	}
	return nil
}

// When returns the date and the commit, which belong into the first cell of a table.
func When() string {
	name, _ := commit() // Reproducible has reported the error
	return fmt.Sprintf("on %s, at %s", time.Now().UTC().Format(time.DateOnly), name)
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
