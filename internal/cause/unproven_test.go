// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// throughNCCL returns a node's status whose log of NCCL has a rank with that channel.
func throughNCCL(via string) agent.JobStatus {
	reader := nccl.NewReader()
	for _, line := range []string{
		"ncclCommInitRankConfig comm 0xbb0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x6e - Init COMPLETE",
		"Channel 00/0 : 0[0] -> 1[0] [send] via " + via,
	} {
		fmt.Fprintf(reader, "host:7:8 [0] NCCL INFO %s\n", line)
	}
	summary := reader.Summary()
	return agent.JobStatus{NCCL: &summary}
}

func TestUnproven(t *testing.T) {
	silent := agent.JobStatus{}
	for _, test := range []struct {
		name   string
		wanted nccl.Transport
		nodes  []agent.JobStatus
		want   string
	}{
		{"RDMA", nccl.RDMAGPU, []agent.JobStatus{throughNCCL("NET/IB/0/GDRDMA"), throughNCCL("NET/IB/0")}, ""},
		{"Spectrum-X", nccl.RDMAGPU, []agent.JobStatus{throughNCCL("NET/SPCX/2(0)/GDRDMA")}, ""},
		{"NVLink of a rack", nccl.RDMAGPU, []agent.JobStatus{throughNCCL("P2P/MNNVL")}, ""},
		{"sockets are an error of their own", nccl.RDMAGPU, []agent.JobStatus{throughNCCL("NET/Socket/0")}, ""},
		{"TCP was wanted", nccl.Unknown, []agent.JobStatus{silent}, ""},
		{"no log", nccl.RDMAGPU, []agent.JobStatus{silent, silent}, "RDMA between the nodes is not proven: NCCL has no log"},
		{"no log of a node", nccl.RDMAHost, []agent.JobStatus{throughNCCL("NET/IB/0"), silent},
			"RDMA is not proven for 1 of 2 nodes: NCCL has no log"},
		{"no channel", nccl.RDMAGPU, []agent.JobStatus{throughNCCL("")}, "NCCL's log shows no channel"},
		{"within the node", nccl.RDMAGPU, []agent.JobStatus{throughNCCL("P2P/CUMEM")}, "NCCL's log shows channels within the node only"},
		{"another network", nccl.RDMAGPU, []agent.JobStatus{throughNCCL("NET/AWS Libfabric/1/GDRDMA")},
			"by NET/AWS Libfabric, and whether that is RDMA"},
	} {
		if got := Unproven(test.nodes, test.wanted); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
