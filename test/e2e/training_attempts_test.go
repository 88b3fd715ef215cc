// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// receiver serves notifications on this machine, behind a Service, and creates the Secret events with its URL. The function
// returns what has arrived: the kind, attempt, verdict and reason of each event.
func (u trainer) receiver() (events func() []string) {
	u.Helper()
	const machine = "10.223.0.1" // on the cluster's bridge
	listener, err := net.Listen("tcp", machine+":0")
	if err != nil {
		u.Fatal(err)
	}
	var mu sync.Mutex
	var got []string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e notify.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			u.Errorf("reading a notification: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s %d %s %s", e.Kind, e.Attempt, e.Verdict, e.Reason))
	}))
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	u.Cleanup(server.Close)
	port := listener.Addr().(*net.TCPAddr).Port
	u.applyText(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: receiver}, spec: {ports: [{port: 80, targetPort: %d}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: receiver, labels: {kubernetes.io/service-name: receiver}},
 addressType: IPv4, endpoints: [{addresses: [%s]}], ports: [{name: "", port: %d}]}
`, port, machine, port))
	u.kubectl("create", "secret", "generic", "events", "--from-literal=url=http://receiver."+u.namespace+".svc/")
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

// restarted tests a run that survives a killed rank and a deleted pod.
func restarted(u trainer) {
	events := u.receiver()
	name := u.start("e2e/attempts.sh", byShell, oneGPU, "--param=max-restarts=2", "--param=notify=events")
	u.waitOutput(name, "train", "[0 -] node 0 is in attempt 2\n", "[1 -] node 1 is in attempt 2\n")
	u.kubectl("delete", "pod", "ml-dev-env-1", "--wait=false")
	e := u.end(name).succeeded().ranks(2)
	e.mustContain(e.log("train"), "Attempt 1 failed: training: rank 1 on node 1 was ended by SIGKILL", "1 restart left after it",
		"Attempt 2 failed: training: node 1, on Kubernetes node ", "0 restarts left after it", "[0 -] node 0 is in attempt 3\n",
		"[1 -] node 1 is in attempt 3\n")
	e.equal("retries of the task", fmt.Sprint(e.tasks["train"].Retries), "0")
	var got []string
	for _, a := range e.receipt.Attempts {
		got = append(got, fmt.Sprintf("%d %s", a.Attempt, a.Reason))
		if a.Reason != "" && (a.Node == nil || *a.Node != 1) {
			e.Errorf("attempt %d failed by node %v, want node 1", a.Attempt, a.Node)
		}
		if a.Started.IsZero() || !a.Ended.After(a.Started) {
			e.Errorf("attempt %d took from %s to %s", a.Attempt, a.Started, a.Ended)
		}
	}
	e.equal("events", fmt.Sprintf("%q", events()),
		fmt.Sprintf("%q", []string{"start 1  ", "restart 1  RankFailed", "restart 2  NodeLost", "end 3 Succeeded "}))
	e.equal("attempts", fmt.Sprint(got), fmt.Sprint([]string{"1 " + string(fail.RankFailed), "2 " + string(fail.NodeLost), "3 "}))
	out, _ := u.says(u.TempDir(), command.Done, "receipt", name)
	e.mustContain(out, "attempt 1", "RankFailed: training: rank 1 on node 1", "attempt 2", "NodeLost: ", "attempt 3", "Succeeded")
	out, _ = u.says(u.TempDir(), command.Done, "logs", name, "--rank=1")
	e.equal("the log of rank 1", out, "node 1 is in attempt 3\n")
	// Every attempt keeps its record.
	for attempt := 1; attempt <= 3; attempt++ {
		for node := range 2 {
			file := fmt.Sprintf("%s/rank-%d.log", agent.AttemptFolder(attempt), node)
			e.mustContain(e.recorded(e.run.UID, file), fmt.Sprintf("node %d is in attempt %d\n", node, attempt))
		}
	}
}

// resumed tests a run in which a rank is killed while all ranks save a checkpoint: the next attempt resumes from the
// checkpoint before, and ends with the same loss as an undisturbed run.
func resumed(u trainer) {
	flags := []string{"--param=launcher=torchrun", oneGPU, "--param=max-restarts=1"}
	e := u.end(u.start("e2e/resumes.py", append(flags, "--param=script-args=--killed")...)).succeeded().ranks(2)
	e.mustContain(e.log("train"), "Attempt 1 failed at step 15: training: rank 1 on node 1 was ended by SIGKILL",
		"Passing over an incomplete checkpoint: step-15: missing .metadata.",
		"The newest complete checkpoint is "+e.workspace()+"/checkpoints/"+e.run.Name+"/step-10; attempt 2 has it in MLENV_LAST_CHECKPOINT.",
		"[0 0] rank 0 starts after step 10\n", "[1 1] rank 1 starts after step 10\n")
	var got []string
	for _, a := range e.receipt.Attempts {
		if a.First == nil || a.Last == nil {
			e.Fatalf("attempt %+v has no steps", a)
		}
		got = append(got, fmt.Sprintf("%d from %q: %.0f to %.0f", a.Attempt, a.Checkpoint, *a.First, *a.Last))
	}
	e.equal("attempts", fmt.Sprint(got), fmt.Sprint([]string{`1 from "": 1 to 15`, `2 from "step-10": 11 to 20`}))
	undisturbed := u.end(u.start("e2e/resumes.py", flags...)).succeeded()
	e.equal("the final loss", e.finalLoss(), undisturbed.finalLoss())
	if spent := e.goodput(); spent.Repeated <= 0 || spent.Steps <= 0 {
		e.Errorf("goodput %+v: want useful steps, and steps 11 to 15 as repeated", spent)
	}
	if spent := undisturbed.goodput(); spent.Repeated != 0 || spent.Steps <= 0 || spent.Starting <= 0 {
		e.Errorf("goodput %+v: want useful steps, and none repeated", spent)
	}
}

// goodput returns what the seconds of the run became, which the training has measured.
func (e ending) goodput() receipt.Spent {
	e.Helper()
	if g := e.receipt.GPUs; g == nil || g.Since.IsZero() {
		e.Fatalf("GPUs %+v: want since when they are assigned", g)
	}
	return e.spent()
}

// spent is goodput also for a local run.
func (e ending) spent() receipt.Spent {
	e.Helper()
	g := e.receipt.Goodput
	if g == nil || !g.Measured {
		e.Fatalf("goodput %+v: want the times of steps", g)
	}
	if whole := e.receipt.Ended.Sub(e.receipt.Started).Seconds(); math.Abs(g.Seconds.Total()-whole) > 1 {
		e.Errorf("goodput %+v: want parts of %.0f s", g.Seconds, whole)
	}
	return g.Seconds
}

// finalLoss returns the last loss in the run's receipt, as the training wrote it.
func (e ending) finalLoss() string {
	e.Helper()
	var metrics struct{ Loss json.Number }
	if err := json.Unmarshal(e.receipt.Metrics, &metrics); err != nil || metrics.Loss == "" {
		e.Fatalf("metrics %q: %v; want a loss", e.receipt.Metrics, err)
	}
	return string(metrics.Loss)
}
