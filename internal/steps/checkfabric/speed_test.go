// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// script returns a program that check-fabric trains.
func script(t *testing.T, lines string) Script {
	t.Helper()
	path := filepath.Join(t.TempDir(), "train.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+lines), 0o755); err != nil {
		t.Fatal(err)
	}
	return Script{Path: path, Launcher: agent.Command, Time: timeForACheckThatEnds}
}

// With a script the comparison has the tokens per second over both: 12,000 without sockets and 8,000 over them, as the script's metrics
// say. What rank 0 did before its first step does not count.
func TestCompareSpeed(t *testing.T) {
	check, _, out := newCheck(t, 2, measured)
	check.CompareTCP = true
	check.Script = script(t, `
[ "$NODE_RANK" = 0 ] || exit 0
line() { echo "{\"step\": $1, \"tokens\": $2, \"time\": $3}" >> "$MLENV_METRICS_FILE"; }
echo '{"note": "loading"}' >> "$MLENV_METRICS_FILE"
line 1 1000 1790000000
[ "$NCCL_NET" = Socket ] && line 3 81000 1790000010 || line 3 121000 1790000010
`)
	report, err := check.Run(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := &fabric.Speed{Script: check.Script.Path, TokensPerSecond: 12000, SocketsTokensPerSecond: 8000}
	if diff := cmp.Diff(want, report.Speed); diff != "" {
		t.Errorf("speed (-want +got):\n%s\n%s", diff, out)
	}
	var table strings.Builder
	if err := report.Print(&table); err != nil || !strings.Contains(table.String(), "1.50\n") {
		t.Errorf("%v: %s, want the ratio of the speeds", err, table.String())
	}
}

// A script that fails fails the check after its report, and its other ranks do not wait for it. One without tokens is no failure.
func TestCompareSpeedOfAScriptThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		lines  string
		reason fail.Reason
		words  string
	}{
		"a rank fails":   {`[ "$NODE_RANK" = 1 ] && exit 7; exec sleep 600`, fail.RankFailed, "exit"},
		"without tokens": {`exit 0`, "", "so its speed is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check, _, out := newCheck(t, 2, measured)
			check.CompareTCP, check.Script = true, script(t, tc.lines)
			report, err := check.Run(t.Context())
			if report.Verdict != fabric.Pass || tc.reason == "" && err != nil || tc.reason != "" && fail.ReasonOf(err) != tc.reason {
				t.Errorf("verdict %q, %v; want a pass, and reason %q\n%s", report.Verdict, err, tc.reason, out)
			}
			if text := out.String(); err == nil && !strings.Contains(text, tc.words) || err != nil && !strings.Contains(err.Error(), tc.words) {
				t.Errorf("%v, log %s; want %q", err, text, tc.words)
			}
		})
	}
}

// The cluster file's figure for TCP counts in mode tcp, and for the comparison.
func TestExpectedOfSockets(t *testing.T) {
	for mode, words := range map[agent.Mode]string{agent.TCP: "bus bandwidth 1.5 GB/s (1.4 GiB/s), expected 3.0 GB/s",
		agent.RDMA: "over TCP sockets: 1.5 GB/s (1.4 GiB/s), expected 3.0 GB/s"} {
		check, agents, _ := newCheck(t, 2, measured)
		for _, node := range agents {
			if _, err := node.Client.SetNetwork(t.Context(),
				agent.Network{Mode: mode, Expected: rdma.Expected{Sockets: 3 * rdma.GBps}}); err != nil {
				t.Fatal(err)
			}
		}
		check.CompareTCP = true
		report, err := check.Run(t.Context())
		if err != nil || report.Verdict != fabric.Slow || !strings.Contains(report.Message, words) ||
			report.SocketsLatency != 50*time.Microsecond {
			t.Errorf("mode %s: %+v, %v; want it slow, with %q", mode, report, err, words)
		}
	}
}
