// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Dumps of several versions of torch. Each entry is a record's id, its numbers as a collective and as P2P, its name, its state, and
// whether it is P2P.
func TestReadFlight(t *testing.T) {
	const write = `
import pickle, sys, time
entries = [{"record_id": i, "process_group": ("0", "default_pg"), "collective_seq_id": c, "p2p_seq_id": p,
            "profiling_name": "nccl:" + name, "state": state, "is_p2p": p2p,
            "time_created_ns": time.time_ns() - 300_000_000_000} for i, c, p, name, state, p2p in eval(sys.argv[2])]
pickle.dump({"version": "2.4", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}, "entries": entries},
            open(sys.argv[1], "wb"))
`
	at := func(number int64, operation, state string) agent.Collective {
		return agent.Collective{Number: number, Operation: operation, State: state}
	}
	pending := func(last, first agent.Collective) agent.Collective {
		last.Pending = &first
		return last
	}
	for _, tc := range []struct {
		name, entries string
		want          agent.Collective
	}{
		{"all are completed", `[(0,1,0,"all_reduce","completed",False),(1,2,0,"broadcast","completed",False)]`, at(2, "broadcast", "completed")},
		{"the rank runs ahead of its GPU", `[(0,1,0,"all_reduce","started",False),(1,2,0,"all_reduce","scheduled",False)]`,
			pending(at(2, "all_reduce", "scheduled"), at(1, "all_reduce", "started"))},
		{"a receive waits", `[(0,1,0,"all_reduce","completed",False),(1,1,7,"recv 0<-1","scheduled",True)]`,
			pending(at(1, "all_reduce", "completed"), at(7, "recv 0<-1", "scheduled"))},
		{"until torch 2.5 batches of P2P are counted",
			`[(0,1,0,"all_reduce","completed",False),(1,2,0,"send 0->1","scheduled",True),(2,2,0,"recv 0<-1","scheduled",True),` +
				`(3,2,0,"coalesced","completed",False),(4,3,0,"all_gather","started",False)]`,
			pending(at(2, "all_gather", "started"), at(3, "all_gather", "started"))},
		{"and the first operations are forgotten",
			`[(90,41,0,"all_reduce","completed",False),(91,42,0,"send 0->1","scheduled",True),(92,42,0,"coalesced","completed",False)]`,
			at(-1, "all_reduce", "completed")},
		{"since torch 2.6 they are not",
			`[(90,41,3,"all_reduce","completed",False),(91,41,4,"send 0->1","scheduled",True),(92,41,4,"recv 0<-1","scheduled",True),` +
				`(93,41,4,"coalesced","started",True)]`, pending(at(41, "all_reduce", "completed"), at(4, "coalesced", "started"))},
		{"nothing was entered", `[]`, at(0, "", "")},
	} {
		dump := writeDump(t, write, tc.entries)
		tc.want.ID, tc.want.Group, tc.want.Ranks = "0", "default_pg", []int{0, 1}
		if diff := cmp.Diff([]agent.Collective{tc.want}, readDumps(t, dump)[dump], ignoreEntered); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// Dumps of torch 2.3 count P2P and collectives together, do not tell them apart except by their names, and number the process groups of
// each rank. The groups of an entry are pg_config; its numbers count records, groups and operations.
func TestReadFlightOfTorch23(t *testing.T) {
	const write = `
import pickle, sys, time
groups, entries = eval(sys.argv[2])
entries = [{"record_id": i, "pg_id": g, "seq_id": n, "op_id": o, "profiling_name": "nccl:" + name,
            "time_created_ns": time.time_ns() - 300_000_000_000, "duration_ms": 0.25, "input_sizes": [[8]], "output_sizes": [[8]],
            "state": state, "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
            "frames": [{"name": "step", "filename": "train.py", "line": 8}]} for i, g, n, o, name, state in entries]
dump = {"entries": entries, "version": "1.4", "nccl_comm_state": {"0x7f": {"rank": "0"}}, "pg_config": groups}
pickle.dump(dump, open(sys.argv[1], "wb"), protocol=2)
`
	group := func(id, name string, ranks []int, number int64, operation, state string, pending ...agent.Collective) agent.Collective {
		c := agent.Collective{ID: id, Group: name, Ranks: ranks, Number: number, Operation: operation, State: state}
		if len(pending) > 0 {
			c.Pending = &pending[0]
		}
		return c
	}
	all, waits := []int{0, 1}, func(number int64, operation, state string) agent.Collective {
		return agent.Collective{Number: number, Operation: operation, State: state}
	}
	for _, tc := range []struct {
		name, dump string
		want       []agent.Collective
	}{
		{"collectives", `{0: [0, 1]}, [(0,0,1,1,"all_reduce","completed"),(1,0,2,2,"broadcast","started")]`,
			[]agent.Collective{group("0", "default_pg", all, 2, "broadcast", "started", waits(2, "broadcast", "started"))}},
		{"a collective after P2P of one rank", `{0: [0, 1]}, [(0,0,1,1,"all_reduce","completed"),(1,0,2,2,"send 0->1","completed"),` +
			`(2,0,3,3,"all_gather","started")]`,
			[]agent.Collective{group("0", "default_pg", all, 2, "all_gather", "started", waits(3, "all_gather", "started"))}},
		{"a batch of P2P", `{0: [0, 1]}, [(0,0,1,1,"all_reduce","completed"),(1,0,2,2,"send 0->1","scheduled"),` +
			`(2,0,2,3,"recv 0<-1","scheduled"),(3,0,2,3,"coalesced","started")]`,
			[]agent.Collective{group("0", "default_pg", all, 1, "all_reduce", "completed", waits(2, "coalesced", "started"))}},
		{"P2P whose beginning is forgotten", `{0: [0, 1]}, [(90,0,41,41,"all_reduce","completed"),(91,0,42,42,"recv 0<-1","started")]`,
			[]agent.Collective{group("0", "default_pg", all, -1, "all_reduce", "completed", waits(42, "recv 0<-1", "started"))}},
		{"collectives whose beginning is forgotten", `{0: [0, 1]}, [(90,0,41,41,"all_reduce","completed")]`,
			[]agent.Collective{group("0", "default_pg", all, 41, "all_reduce", "completed")}},
		{"other groups", `{0: [0, 1], 1: [0, 2], 2: [0, 1]}, [(0,2,1,1,"all_reduce","completed")]`, []agent.Collective{
			group("0", "default_pg", all, 0, "", ""), group("0", "process group 1", []int{0, 2}, 0, "", ""),
			group("1", "process group 2", all, 1, "all_reduce", "completed")}},
	} {
		dump := writeDump(t, write, tc.dump)
		if diff := cmp.Diff(tc.want, readDumps(t, dump)[dump], ignoreEntered); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// A dump that is not like any that is known, as torch 2.2 or a rank writes one, does not keep the others from being read.
func TestReadFlightBesideOthers(t *testing.T) {
	const write = "import pickle, sys\npickle.dump(eval(sys.argv[2]), open(sys.argv[1], 'wb'), protocol=4)"
	const good = `{"entries": [], "pg_config": {"0": {"desc": "default_pg", "ranks": "[0]"}}}`
	for _, odd := range []string{
		`[{"pg_id": 0, "seq_id": 1, "profiling_name": "nccl:all_reduce", "time_created_us": 7, "state": "started", "frames": []}]`,
		`None`, `{"entries": None}`, `{"entries": [7]}`, `{"entries": [], "pg_config": []}`,
		`{"entries": [], "pg_config": {"0": {"ranks": [0, 1]}}}`,
		`{"entries": [], "pg_config": {"0": {"desc": b"x", "ranks": "[0]"}}}`,
		`{"entries": [], "pg_config": {"0": {"desc": "x", "ranks": "[" * 100000}}}`,
		`{"entries": [{"record_id": 0, "process_group": ("0",), "collective_seq_id": 1, "profiling_name": "x", "state": "started", ` +
			`"time_created_ns": 10**400}], "pg_config": {"0": {"ranks": "[0]"}}}`,
		`{"entries": [], "pg_config": {"0": {"desc": "x", "ranks": "[NaN]"}}}`,
		`{"entries": [], "pg_config": {"0": {"desc": 7, "ranks": "[0]"}}}`,
		`{"entries": [{"record_id": 0, "process_group": "0", "collective_seq_id": 1 << 70, "profiling_name": "x", ` +
			`"state": "started", "time_created_ns": 1}], "pg_config": {"0": {"ranks": "[0]"}}}`,
		`{"version": "1.4", "entries": [{"record_id": 0, "pg_id": 0, "seq_id": 1}], "pg_config": {0: 7}}`,
	} {
		first, second := writeDump(t, write, odd), writeDump(t, write, good)
		if found := readDumps(t, first, second); len(found[second]) != 1 {
			t.Errorf("%.200s: got %+v, want the other dump's group", odd, found)
		}
	}
}

var ignoreEntered = cmpopts.IgnoreFields(agent.Collective{}, "Entered")

// writeDump writes a dump by a program of Python whose arguments are the file and what it has.
func writeDump(t *testing.T, program, argument string) (dump string) {
	t.Helper()
	dump = filepath.Join(t.TempDir(), "rank-0")
	if out, err := exec.Command("python3", "-c", program, dump, argument).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dump
}

func readDumps(t *testing.T, dumps ...string) (found map[string][]agent.Collective) {
	t.Helper()
	args := append([]string{"-I", "-S", "-c", readFlight, "1"}, dumps...)
	if err := aJob(t).runJSON(t.Context(), &found, "python3", args...); err != nil {
		t.Error(err)
	}
	return found
}
