package git

import (
	"log/slog"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// progressEvery is how often a long work says how far it is.
const progressEvery = 5 * time.Second

// progress says now and then how far a work is.
type progress struct {
	log   *slog.Logger
	start time.Time

	mu   sync.Mutex
	last time.Time
	done int64
}

func newProgress(log *slog.Logger) *progress {
	now := time.Now()
	return &progress{log: log, start: now, last: now}
}

// add counts bytes and, when it is time, logs the sentence made of them and of
// the bytes a second.
func (p *progress) add(n int, sentence func(done, rate string) string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += int64(n)
	now := time.Now()
	if now.Sub(p.last) < progressEvery {
		return
	}
	p.last = now
	p.log.Info(sentence(humanize.Bytes(p.done), humanize.Bytes(int64(float64(p.done)/now.Sub(p.start).Seconds()))), slog.Int64("bytes", p.done))
}

// total is how many bytes were counted.
func (p *progress) total() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}
