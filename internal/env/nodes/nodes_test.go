// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

func TestEach(t *testing.T) {
	set := Set{agent.NewClient(0, "", agent.Credentials{}, nil), agent.NewClient(1, "", agent.Credentials{}, nil),
		agent.NewClient(2, "", agent.Credentials{}, nil)}
	one := errors.New("node 1")
	t.Run("one error cancels the others, which have none of their own", func(t *testing.T) {
		err := set.Each(t.Context(), func(ctx context.Context, client *agent.Client) error {
			if client.Node() == 1 {
				return one
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, one) || errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v alone", err, one)
		}
	})
	t.Run("a cancelled wait ends as Canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := set.Each(ctx, func(ctx context.Context, _ *agent.Client) error { return ctx.Err() }); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want Canceled", err)
		}
	})
	t.Run("errors are in the order of the nodes", func(t *testing.T) {
		second := make(chan struct{})
		err := set.Each(t.Context(), func(_ context.Context, client *agent.Client) error {
			if client.Node() == 0 {
				<-second // node 0 fails last
			} else if client.Node() == 2 {
				close(second)
			}
			return fail.Becausef(fail.SyncFailed, "node %d", client.Node())
		})
		if err == nil || err.Error() != "node 0\nnode 1\nnode 2" {
			t.Errorf("got %v", err)
		}
	})
}

func TestRetry(t *testing.T) {
	gone := fail.Becausef(fail.AgentUnreachable, "nobody listens")
	for _, tc := range []struct {
		name    string
		answers []error // the last answer repeats
		want    error
	}{
		{"comes back", []error{gone, gone, nil}, nil},
		{"another error", []error{gone, fs.ErrInvalid}, fs.ErrInvalid},
		{"stays away", []error{gone}, gone},
		{"is cut off in the middle", []error{gone, fail.Because(fail.AgentUnreachable, context.DeadlineExceeded)}, gone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				calls := 0
				err := RetryUnreachable(ctx, func() error {
					calls++
					return tc.answers[min(calls, len(tc.answers))-1]
				})
				if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			})
		})
	}
}

// A node whose address drops packets fails only by the deadline. The reason is still that the node cannot be reached.
func TestNodeThatDoesNotAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client := agent.NewClient(3, "", agent.Credentials{}, func(ctx context.Context, _ int) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", silent.Addr().String())
	})
	defer client.Close()
	const timeThatPasses = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), timeThatPasses)
	defer cancel()
	err = RetryUnreachable(ctx, func() error { _, err := client.Facts(ctx); return err })
	if fail.ReasonOf(err) != fail.AgentUnreachable || !strings.Contains(err.Error(), "node 3") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %s: %v, want AgentUnreachable for node 3", fail.ReasonOf(err), err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := client.Facts(ctx); !errors.Is(err, context.Canceled) || fail.ReasonOf(err) == fail.AgentUnreachable {
		t.Errorf("a cancelled wait ends as %s: %v, want Canceled", fail.ReasonOf(err), err)
	}
}
