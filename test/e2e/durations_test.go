// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// durations has the times of the scenarios that have ended.
type durations struct {
	mu    sync.Mutex
	times []scenarioTime
}

type scenarioTime struct {
	name   string
	time   time.Duration
	failed bool
}

// note measures the scenario from now to the end of its cleanup.
func (d *durations) note(t *testing.T) {
	began := time.Now()
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.times = append(d.times, scenarioTime{t.Name(), time.Since(began), t.Failed()})
	})
}

// printSlowest prints the n scenarios that took the longest.
func (d *durations) printSlowest(out io.Writer, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortFunc(d.times, func(a, b scenarioTime) int { return int(b.time - a.time) })
	fmt.Fprintln(out, "the slowest scenarios:")
	for _, s := range d.times[:min(n, len(d.times))] {
		fmt.Fprintf(out, "%8.0f s  %s\n", s.time.Seconds(), s.name)
	}
}

// writeFaults writes into docs/project/faults.md when the scenarios of the faults ran, and which of them failed.
func (d *durations) writeFaults(t *testing.T, repository string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	commit, err := run(t, nil, "git", "-C", repository, "-c", "safe.directory=*", "rev-parse", "--short=12", "HEAD")
	if err != nil {
		t.Fatalf("reading the commit: %v\n%s", err, commit)
	}
	text := fmt.Sprintf("Last run on %s, at commit %s.", time.Now().UTC().Format(time.DateOnly), strings.TrimSpace(commit))
	for _, s := range d.times {
		if name := path.Base(s.name); s.failed && isFault(name) {
			text += " `" + name + "` **failed**."
		}
	}
	page, err := os.ReadFile(faultsFile)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = faultsPage(string(page), text); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(faultsFile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
