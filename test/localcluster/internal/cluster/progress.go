// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// heartbeat is the interval at which a long stage reports its progress.
const heartbeat = 10 * time.Second

// progress prints the stages of a command with their times. Stages may run in parallel.
type progress struct {
	mu  sync.Mutex
	out io.Writer
}

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// stage runs one stage and prints its duration.
func (p *progress) stage(name string, run func() error) error {
	return p.known(name, 0, run)
}

// known is stage for one that usually lasts as long on two cores, which its progress shows.
func (p *progress) known(name string, usually time.Duration, run func() error) error {
	start := time.Now()
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(heartbeat)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				took, rest := time.Since(start), ""
				if left := usually - took; left > 0 {
					rest = fmt.Sprintf(", about %.0fs left on two cores", left.Seconds())
				}
				p.say("  ...     %-36s %6.1fs so far%s", name, took.Seconds(), rest)
			}
		}
	}()
	err := run()
	close(done)
	<-stopped
	if err != nil {
		p.say("  FAILED  %-36s %6.1fs", name, time.Since(start).Seconds())
		return err
	}
	p.say("  done    %-36s %6.1fs", name, time.Since(start).Seconds())
	return nil
}
