// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// recorder stands in for a rank with NCCL. Like ProcessGroupNCCL, it creates a FIFO, polls it, and then writes a dump in
// FlightRecorder's format, version 2.10.
const recorder = `
import os, pickle, time
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "0.pipe"
os.mkfifo(pipe, 0o666)
fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print(os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"], os.path.dirname(pipe), flush=True)
def entry(number, operation, state, p2p=False):
    return {"frames": [{"name": "step", "filename": "train.py", "line": 8}], "record_id": number, "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "thread_name": "pt_main", "thread_id": "1", "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
            "profiling_name": "nccl:" + operation,
            "time_created_ns": time.time_ns() - 60_000_000_000, "input_sizes": [[1]], "input_dtypes": ["Float"],
            "output_sizes": [[1]], "output_dtypes": ["Float"],
            "state": state, "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "retired": False, "timeout_ms": 600000, "is_p2p": p2p}
def read():
    try:
        return os.read(fd, 128)
    except BlockingIOError:
        return b""
while True:
    if os.environ.get("TORCH_NCCL_DUMP_ON_TIMEOUT") != "1":
        time.sleep(480)
    if timeout or read():
        dump = {"version": "2.10", "comm_lib_version": "2.27.5", "pg_status": {},
                "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
                              "1": {"name": "1", "desc": "pair", "ranks": "[0, 1]"}},
                "entries": [entry(811, "all_gather", "completed"), entry(812, "all_reduce", "started"),
                            entry(812, "send 0->1", "started", True)]}
        content = pickle.dumps(dump, protocol=2)
        with open(os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + "0", "wb") as file:
            file.write(content[:100]); file.flush(); time.sleep(0.3); file.write(content[100:])
    time.sleep(0.05)
`

// A dump that torch wrote by itself stays, although its rank ends and the job with it.
func TestLastDumps(t *testing.T) {
	n := newNode(t)
	n.script("abort.py", strings.Replace("timeout = True"+recorder, "while True:", "for _ in [1]:", 1))
	if _, err := n.Client.StartJob(t.Context(), "job", command("abort.py")); err != nil {
		t.Fatal(err)
	}
	status := n.wait("job")
	if got := status.Collectives[0]; len(got) != 2 || got[0].Number != 812 || got[0].Pending == nil ||
		got[0].Pending.Operation != "all_reduce" {
		t.Errorf("the status has %+v, want the last collectives", got)
	}
	if dump, err := os.ReadFile(filepath.Join(status.Record, "flight-0")); err != nil || len(dump) == 0 {
		t.Errorf("the record has %d bytes, %v; want the dump", len(dump), err)
	}
}

func TestFlightRecorder(t *testing.T) {
	n := newNode(t)
	n.script("record.py", "timeout = False"+recorder)
	status, err := n.Client.StartJob(t.Context(), "job", command("record.py"))
	if err != nil {
		t.Fatal(err)
	}
	scratch := ""
	for log := filepath.Join(status.Record, "rank-0.log"); scratch == ""; time.Sleep(10 * time.Millisecond) {
		printed, _ := os.ReadFile(log)
		if _, rest, found := strings.Cut(string(printed), "2000 "); found && strings.HasSuffix(rest, "\n") {
			scratch = strings.TrimSpace(rest)
		}
		if t.Context().Err() != nil {
			t.Fatal("the rank did not start")
		}
	}
	all, err := n.Client.Stacks(t.Context(), "job")
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v; want one rank", all, err)
	}
	want := []agent.Collective{
		{ID: "0", Group: "default_pg", Ranks: []int{0, 1}, Number: 812, Operation: "all_reduce", State: "started", Entered: 60,
			Pending: &agent.Collective{Number: 812, Operation: "all_reduce", State: "started", Entered: 60}},
		{ID: "1", Group: "pair", Ranks: []int{0, 1}, Entered: float64(time.Now().Unix())},
	}
	const secondsForTheDump = 50
	if diff := cmp.Diff(want, all[0].Collectives, cmpopts.EquateApprox(0, secondsForTheDump)); diff != "" {
		t.Errorf("collectives (-want +got):\n%s", diff)
	}
	const protocol2 = "\x80\x02" // the first bytes of a pickle
	dump, err := os.ReadFile(filepath.Join(status.Record, "flight-0"))
	if err != nil || !strings.HasPrefix(string(dump), protocol2) || !strings.HasSuffix(string(dump), ".") {
		t.Errorf("the record has the dump %.20q, %v; want the whole pickle", dump, err)
	}
	n.stop()
	if _, err := os.Stat(scratch); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the job left %s: %v", scratch, err)
	}
}
