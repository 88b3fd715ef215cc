package server_test

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/agenttest"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
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
