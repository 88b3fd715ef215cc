// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// transfers are the trees that clients are sending to this node. A client whose connection broke asks at once what is missing, before
// this node has noticed, and must get an answer with what came.
type transfers struct {
	mu      sync.Mutex
	running map[transferKey]*transfer
}

type transferKey struct{ client, tree string }

type transfer struct {
	end  func()
	done chan struct{}
}

func transferOf(r *http.Request) transferKey {
	return transferKey{r.Header.Get(agent.ClientHeader), r.PathValue("hash")}
}

// begin returns the request with a context that ends when the client plans the tree again. The caller must call done.
func (t *transfers) begin(w http.ResponseWriter, r *http.Request) (_ *http.Request, done func()) {
	key := transferOf(r)
	ctx, cancel := context.WithCancel(r.Context())
	now := &transfer{done: make(chan struct{}), end: func() {
		cancel()
		_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // a broken connection may be silent
	}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil {
		t.running = map[transferKey]*transfer{}
	}
	t.running[key] = now
	return r.WithContext(ctx), func() {
		cancel()
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.running[key] == now {
			delete(t.running, key)
		}
		close(now.done)
	}
}

// endEarlier ends the client's transfer of the tree, if one is running, and waits until the store has kept what came.
func (t *transfers) endEarlier(r *http.Request) {
	t.mu.Lock()
	earlier := t.running[transferOf(r)]
	if earlier != nil {
		earlier.end() // its request is not answered yet
	}
	t.mu.Unlock()
	if earlier == nil {
		return
	}
	select {
	case <-earlier.done:
	case <-r.Context().Done():
	}
}
