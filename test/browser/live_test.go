// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package browser

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/live"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
)

// TestLivePage opens the page of mlenv ui for a training that advances one step on every request of the page.
func TestLivePage(t *testing.T) {
	browser := start(t)
	for _, width := range []int64{375, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprintf("%d/%s", width, scheme), func(t *testing.T) {
				opened := open(t, browser, servedPage(t), width, scheme)
				var wrong []string
				var text string
				opened.run("looking", chromedp.Poll(`document.querySelectorAll("svg").length > 0`, nil), chromedp.Evaluate(look, &wrong))
				for _, complaint := range wrong {
					t.Error(complaint)
				}
				opened.run("waiting for later steps", chromedp.Text("h2 + p", &text),
					chromedp.Poll(fmt.Sprintf(`document.querySelector("h2 + p").innerText !== %q`, text), nil))
				opened.still()
			})
		}
	}
}

// servedPage returns the address of a page.
func servedPage(t *testing.T) string {
	t.Helper()
	var asked atomic.Int64
	page := live.Page{Environment: "ml-dev-env", State: func(context.Context) (live.State, error) {
		step := float64(asked.Add(1) + 10)
		history := metrics.History{}
		for n := range int(step) {
			history.Add(map[string]any{"step": float64(n + 1), "loss": 4 / float64(n+1), "tokens": 1000 * float64(n+1),
				"time": 1790000000 + float64(n)})
		}
		state := live.State{Environment: "ml-dev-env",
			Jobs: []live.Job{{ID: "job", Run: "train-multi-node-x7k2p", Step: step, Steps: 500, Loss: 4 / step, StepsPerSecond: 1,
				PerSecond: 1000, Rate: "tokens", Curve: history.Curve(), Fabric: "Fabric: pass: 2 nodes of 4 ranks each, RDMA with GPUDirect, bus " +
					"bandwidth 194.5 GB/s."}}}
		for node := range 2 {
			state.Nodes = append(state.Nodes, live.Node{Node: node, KubernetesNode: fmt.Sprintf("moc-r4pcc02u1%d-nairr", node), MemoryUsed: 12e9,
				MemoryLimit: 256e9, Ranks: 2, All: 2,
				GPUs: []agent.GPU{{Memory: 80e9, MemoryUsed: 60e9, Utilization: 97, Temperature: 61},
					{Index: 1, Memory: 80e9, Throttled: []string{"hardware thermal slowdown"}}}})
			for local := range 2 {
				state.Jobs[0].Ranks = append(state.Jobs[0].Ranks, live.Rank{Rank: 2*node + local, Node: node, State: "running"})
			}
		}
		return state, nil
	}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: page.Handler(listener.Addr().String(), "token")}
	go func() { _ = server.Serve(listener) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String() + "/token/"
}
