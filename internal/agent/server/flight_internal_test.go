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
		dump := filepath.Join(t.TempDir(), "rank-0")
		if out, err := exec.Command("python3", "-c", write, dump, tc.entries).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var found map[string][]agent.Collective
		if err := aJob(t).runJSON(t.Context(), &found, "python3", "-I", "-S", "-c", readFlight, "1", dump); err != nil {
			t.Fatal(err)
		}
		tc.want.ID, tc.want.Group, tc.want.Ranks = "0", "default_pg", []int{0, 1}
		if diff := cmp.Diff([]agent.Collective{tc.want}, found[dump], cmpopts.IgnoreFields(agent.Collective{}, "Entered")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}
