// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"context"
	"fmt"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

const (
	// mostDirect is how many volumes get everything from this program. If there are more, it sends to firstHolders of them, and the
	// others pull from these and from each other.
	mostDirect   = 8
	firstHolders = 4
	// leastPassed is how many bytes a node must miss to pull them: fewer are sent as fast as the request to pull.
	leastPassed = 1 << 20
	// pullsOfHolder is how many nodes pull from one node at the same time, so each wave reaches three times as many.
	pullsOfHolder = 2
	// pullTries is how many holders a node tries before it gets the tree from this program.
	pullTries = 3
)

// splitTargets returns the nodes to send to, and those that pull after them.
func (p *parcel) splitTargets(volumes nodes.Set, tries []try) (direct, pulling nodes.Set) {
	for _, client := range volumes {
		switch t := tries[client.Node()]; {
		case t.err != nil || t.present:
		case p.sizeOf(t.missing) < leastPassed:
			direct = append(direct, client)
		default:
			pulling = append(pulling, client)
		}
	}
	first := len(pulling)
	if first > mostDirect {
		first = firstHolders
	}
	return append(direct, pulling[:first]...), pulling[first:]
}

// sizeOf returns the size of the marked entries' contents.
func (p *parcel) sizeOf(missing []bool) (size int64) {
	for i, wanted := range missing {
		if wanted {
			size += p.manifest.Entries[i].Size
		}
	}
	return size
}

// passOn has nodes pull the tree from the volumes that hold it. Each that has pulled it is a holder too, so the time grows with the
// logarithm of the nodes. It returns the nodes that this program has to send to.
func (s sender) passOn(ctx context.Context, volumes, to nodes.Set, p *parcel, tries []try) (left nodes.Set) {
	holders := newTurns(len(volumes))
	for _, client := range volumes {
		if t := tries[client.Node()]; t.present || t.streamed && t.err == nil {
			holders.add(client.Node(), 0)
		}
	}
	holders.drop() // newTurns' own
	pull := func(client *agent.Client) bool { return s.pull(ctx, client, p, holders, &tries[client.Node()]) }
	for i, pulled := range parallel.Map(to, pull) {
		switch t := tries[to[i].Node()]; {
		case pulled:
			p.passed++
		case t.err == nil && !t.present:
			left = append(left, to[i])
		}
	}
	p.waves = holders.waves
	return left
}

// pull has a node receive the tree from a holder. A holder that delivered nearly nothing loses the turn: it may be dead or wrong. After a
// failure t is what the node still misses.
func (s sender) pull(ctx context.Context, client *agent.Client, p *parcel, holders *turns, t *try) bool {
	for tries := 0; tries < pullTries; {
		from, ok := holders.take(ctx)
		if !ok {
			return false
		}
		state, err := client.PullTree(ctx, p.hash, from.holder)
		if err == nil && state.Hash != p.hash {
			err = fail.Becausef(fail.SyncFailed, "passing tree %s: node %d holds %s", p.hash, client.Node(), state.Hash)
		}
		if err == nil {
			holders.add(client.Node(), from.wave+1)
			holders.free <- from
			t.present = true
			return true
		}
		left := p.bytesMissing(*t)
		*t = p.askMissing(ctx, client)
		switch {
		case t.err == nil && left-p.bytesMissing(*t) >= leastPassed: // only the connection broke
			holders.free <- from
			continue
		case fail.ReasonOf(err) != fail.SyncFailed: // the holder had no part in it: the node is away or full
			holders.free <- from
			return false
		}
		tries++
		holders.drop()
		s.log.Warn(fmt.Sprintf("Node %d did not get the tree from node %d: %v", client.Node(), from.holder, err))
	}
	return false
}

// turn lets one node pull from a holder, a node that got the tree in that wave; 0 is from this program.
type turn struct{ holder, wave int }

// turns hands out the turns of all holders.
type turns struct {
	// free has those that no node uses. It is closed when no turn is free or used.
	free chan turn
	// mu guards left, the number of turns that are free or used, and waves, the last one. Only the user of a turn adds others.
	mu          sync.Mutex
	left, waves int
}

// newTurns begins with one used turn, of no holder, and has room for the turns of so many holders.
func newTurns(holders int) *turns {
	return &turns{free: make(chan turn, pullsOfHolder*holders), left: 1}
}

// add adds the turns of a new holder.
func (t *turns) add(holder, wave int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left += pullsOfHolder
	t.waves = max(t.waves, wave)
	for range pullsOfHolder {
		t.free <- turn{holder, wave}
	}
}

// drop ends a used turn.
func (t *turns) drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left--; t.left == 0 {
		close(t.free)
	}
}

// take waits for a turn. It returns false if there will be none.
func (t *turns) take(ctx context.Context) (from turn, ok bool) {
	select {
	case from, ok = <-t.free:
	case <-ctx.Done():
	}
	return from, ok
}
