// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// If a run is cancelled, Tekton starts teardown while train still stops the ranks. How each rank ended is in the receipt: a rank that
// saves after SIGTERM and leaves with 0 did, whether train has given the order to stop or not, and although a connection breaks meanwhile.
func TestTeardownWaitsForRanksThatSave(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		t.Run(fmt.Sprint("ordered: ", ordered), func(t *testing.T) {
			objects, agents := live(t)
			for _, node := range agents {
				breakWatch := node.BreakWatch()
				script := "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done\n"
				if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.sh"), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
				spec := agent.JobSpec{Run: "train-1", Launcher: agent.Command, Script: "train.sh", Nodes: 2, RanksPerNode: 1}
				if _, err := node.Client.StartJob(t.Context(), "uid-1", spec); err != nil {
					t.Fatal(err)
				}
				running := errors.New("it runs")
				err := node.Client.WatchJob(t.Context(), "uid-1", func(status agent.JobStatus) error {
					if len(status.Ranks) > 0 && !status.Ranks[0].Started.IsZero() {
						return running
					}
					return nil
				})
				if !errors.Is(err, running) {
					t.Fatal(err)
				}
				log, err := node.Client.Log(t.Context(), "uid-1", fmt.Sprint(agent.RankLog, node.Config.Node), 0, true)
				if err != nil {
					t.Fatal(err)
				}
				if line, err := bufio.NewReader(log).ReadString('\n'); line != "up\n" {
					t.Fatalf("the rank printed %q, %v", line, err)
				}
				log.Close()
				breakWatch()
				if ordered {
					if err := node.Client.StopJob(t.Context(), "uid-1", agent.Stop{Reason: "the run was cancelled"}); err != nil {
						t.Fatal(err)
					}
				}
			}
			cancelled := func(r *v1.PipelineRun) { r.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally }
			p := newPlace(t, []runtime.Object{pipelineRun(cancelled), task("train", "TaskRunCancelled", nil)}, objects...)
			r, err := p.run(t.Context())
			if err != nil || r.Reason != "Cancelled" {
				t.Errorf("got %s, %v; want Cancelled", r.Reason, err)
			}
			var ends []string
			for _, rank := range r.Ranks {
				ends = append(ends, fmt.Sprintf("%d: %d %t", rank.Rank, rank.Exit.Code, rank.Seconds > 0))
			}
			if got, want := strings.Join(ends, ", "), "0: 0 true, 1: 0 true"; got != want {
				t.Errorf("ranks, their exit codes and whether they have a time: %s; want %s", got, want)
			}
		})
	}
}
