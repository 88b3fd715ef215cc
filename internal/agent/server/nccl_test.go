// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// likeNCCL writes its second argument to the file to which NCCL would write its log.
const likeNCCL = `file=$(printf %s "$NCCL_DEBUG_FILE" | sed "s/%h/host/; s/%p/$$/"); printf '%s\n' "$1" >> "$file"; `

// socketsLog is the log of NCCL 2.28 for rank 0 of 2 over TCP.
const socketsLog = `host:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
host:7:8 [0] NCCL INFO Using network Socket
host:7:8 [0] NCCL INFO comm 0xbb0 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
host:7:8 [0] NCCL INFO ncclCommInitRankConfig comm 0xbb0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x6e - Init COMPLETE
host:7:8 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
host:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0`

func TestNCCLIsRead(t *testing.T) {
	n := newNode(t)
	n.script("gate.sh", likeNCCL+`while [ ! -e go ]; do sleep 0.05; done`)
	if _, err := n.Client.StartJob(t.Context(), "job", command("gate.sh", socketsLog)); err != nil {
		t.Fatal(err)
	}
	// The status reports NCCL's log while the job runs.
	var seen agent.JobStatus
	err := n.Client.WatchJob(t.Context(), "job", func(s agent.JobStatus) error {
		if s.NCCL != nil && seen.NCCL == nil {
			seen = s
			n.script("go", "")
		}
		return nil
	})
	if err != nil || seen.State != agent.Running {
		t.Fatalf("watching the job: %v; NCCL's log was reported in state %q, want %q", err, seen.State, agent.Running)
	}
	end := n.wait("job")
	for _, status := range []agent.JobStatus{seen, end} {
		if status.NCCL == nil || status.NCCL.Transport != nccl.Sockets || len(status.NCCL.Ranks) != 1 {
			t.Errorf("in state %s NCCL's log shows %+v, want one rank on sockets", status.State, status.NCCL)
		}
	}
	// The record has it too, for an agent that starts later.
	if status, err := record.Dir(end.Record).ReadNode(0); err != nil || status.NCCL == nil || status.NCCL.Transport != nccl.Sockets {
		t.Errorf("in the record NCCL's log shows %+v (%v), want sockets", status.NCCL, err)
	}
}

func TestNCCLSettings(t *testing.T) {
	const show = `printf '%s|%s|' "$NCCL_DEBUG" "$NCCL_DEBUG_SUBSYS"; case "$NCCL_DEBUG_FILE" in "$MLENV_RUN_DIR"/nccl-0-%h-%p.log) echo ` +
		`ours;; *) echo "$NCCL_DEBUG_FILE";; esac`
	for _, test := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"nothing given", nil, "INFO|INIT,BOOTSTRAP,ENV,NET|ours"},
		{"less", map[string]string{"NCCL_DEBUG": "WARN"}, "INFO|INIT,BOOTSTRAP,ENV,NET|ours"},
		{"more", map[string]string{"NCCL_DEBUG": "trace", "NCCL_DEBUG_SUBSYS": "COLL"}, "trace|INIT,BOOTSTRAP,ENV,NET,COLL|ours"},
		{"all but some", map[string]string{"NCCL_DEBUG_SUBSYS": "^COLL"}, "INFO|^COLL|ours"},
		{"a file of one's own", map[string]string{"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/null"}, "WARN||/dev/null"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			n.script("show.sh", show)
			spec := command("show.sh")
			spec.Env = test.env
			n.run("job", spec)
			if diff := cmp.Diff(test.want, strings.TrimSpace(n.log("job", "rank-0", 0))); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}
