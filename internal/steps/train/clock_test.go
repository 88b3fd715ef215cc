// SPDX-License-Identifier: Apache-2.0

package train

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// slowClock moves the times in an agent's answers back, as if the node's clock were behind.
type slowClock struct {
	http.ResponseWriter
	behind time.Duration
}

var timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`)

func (s slowClock) stamp() {
	s.Header().Set("Mlenv-Clock", time.Now().Add(-s.behind).UTC().Format(time.RFC3339Nano))
}

func (s slowClock) WriteHeader(code int) {
	s.stamp()
	s.ResponseWriter.WriteHeader(code)
}

func (s slowClock) FlushError() error {
	s.stamp()
	return http.NewResponseController(s.ResponseWriter).Flush()
}

func (s slowClock) Write(p []byte) (int, error) {
	s.stamp()
	_, err := s.ResponseWriter.Write(timestamp.ReplaceAllFunc(p, func(text []byte) []byte {
		at, err := time.Parse(time.RFC3339Nano, string(text))
		if err != nil {
			return text
		}
		return at.Add(-s.behind).AppendFormat(nil, time.RFC3339Nano)
	}))
	return len(p), err
}

func (s slowClock) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// The times in the statuses decide which rank failed first, so all of them are by one clock.
func TestWrongClockOfANode(t *testing.T) {
	began := filepath.Join(t.TempDir(), "began")
	training, out, agents := newTraining(t, `if [ "$NODE_RANK" = 0 ]; then until [ -e '`+began+`' ]; do sleep 0.05; done; exit 7; fi; touch '`+
		began+`'; exec sleep 100`)
	agents[1].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/logs/") {
				next.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(slowClock{w, time.Hour}, r)
		})
	})
	result, err := training.Attempt(t.Context())
	if fail.ReasonOf(err) != fail.RankFailed || !strings.Contains(err.Error(), "rank 0 on node 0 exited with 7") {
		t.Errorf("got %v, want rank 0", err)
	}
	const timeSinceTheEnd = time.Minute // with the wrong clock it is more than an hour
	if ended := result.Statuses[1].Ranks[0].Ended; time.Since(ended) > timeSinceTheEnd {
		t.Errorf("rank 1 ended at %s, %s ago", ended, time.Since(ended))
	}
	// A clock is compared by the time of an answer, which is some seconds on a busy machine.
	if !regexp.MustCompile(`The clock of node 1 is (59m\d\ds|1h0m\ds) behind this step's\.`).MatchString(out.String()) {
		t.Errorf("output %q, want that the clock is an hour behind", out)
	}
}
