// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"io"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestRecordFiles(t *testing.T) {
	client := agenttest.Start(t, 1)[0].Client
	if _, err := client.ReadRecord(t.Context(), "run", agent.FabricReport); !agent.IsNotFound(err) {
		t.Errorf("before it is written: %v, want not found", err)
	}
	for _, content := range []string{"{}", `{"verdict":"pass"}`} {
		if err := client.WriteRecord(t.Context(), "run", agent.FabricReport, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := client.ReadRecord(t.Context(), "run", agent.FabricReport); err != nil || string(got) != content {
			t.Errorf("got %q, %v; want %q", got, err, content)
		}
	}
	for _, wrong := range []struct{ id, name, content string }{
		{"run", "node-0.json", "{}"},
		{".hidden", agent.FabricReport, "{}"},
		{"run", agent.FabricReport, string(make([]byte, agent.MaxRecordFile+1))},
	} {
		if err := client.WriteRecord(t.Context(), wrong.id, wrong.name, []byte(wrong.content)); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("writing %s/%s: %v, want InvalidInput", wrong.id, wrong.name, err)
		}
	}
}

// The agent reads only the end of a log, because the metrics of a long training are hundreds of megabytes.
func TestLogEnd(t *testing.T) {
	n := newNode(t)
	n.script("write.sh", `printf '997\n998\n999\n' >"$MLENV_METRICS_FILE"`)
	n.run("job", command("write.sh"))
	for most, want := range map[int64]string{6: "8\n999\n", 4: "999\n", 0: "", 1 << 20: "997\n998\n999\n"} {
		log, err := n.Client.LogEnd(t.Context(), "job", agent.MetricsLog, most)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if got, err := io.ReadAll(log); err != nil || string(got) != want {
			t.Errorf("the last %d bytes: %q, %v; want %q", most, got, err, want)
		}
	}
}
