//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"slices"
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
	name string
	time time.Duration
}

// note measures the scenario from now to the end of its cleanup.
func (d *durations) note(t *testing.T) {
	began := time.Now()
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.times = append(d.times, scenarioTime{t.Name(), time.Since(began)})
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
