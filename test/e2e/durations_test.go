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

// durations are how long scenarios took.
type durations struct {
	mu    sync.Mutex
	taken []taken
}

type taken struct {
	name string
	time time.Duration
}

// note notes how long the scenario takes from now to the end of its cleanup.
func (d *durations) note(t *testing.T) {
	began := time.Now()
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.taken = append(d.taken, taken{t.Name(), time.Since(began)})
	})
}

// printSlowest prints the n scenarios that took the longest.
func (d *durations) printSlowest(out io.Writer, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortFunc(d.taken, func(a, b taken) int { return int(b.time - a.time) })
	fmt.Fprintln(out, "the slowest scenarios:")
	for _, s := range d.taken[:min(n, len(d.taken))] {
		fmt.Fprintf(out, "%8.0f s  %s\n", s.time.Seconds(), s.name)
	}
}
