// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestCachesMoveWhole: without locks on the claim a job has Hugging Face's whole cache on its node, not only the locks, also after a
// restart of the container. The user's login stays on the claim.
func TestCachesMoveWhole(t *testing.T) {
	n := newNode(t)
	home, claim := n.Config.Paths.Home, filepath.Join(n.Config.Paths.Workspace, ".mlenv")
	n.script("show.sh", `for name in HF_HOME HF_TOKEN_PATH TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR
do eval echo "$name=\$$name"
done
ls -d "$HF_HOME" > /dev/null`)
	shows := func(job string, want ...string) {
		t.Helper()
		if status := n.run(job, command("show.sh")); status.Ranks[0].Exit.Code != 0 {
			t.Errorf("%s: exit %+v; want the folder to exist", job, status.Ranks[0].Exit)
		}
		got := n.log(job, "rank-0", 0)
		for _, line := range want {
			if !strings.Contains(got, line+"\n") {
				t.Errorf("%s: %q is missing in:\n%s", job, line, got)
			}
		}
	}
	onClaim := []string{"HF_HOME=" + claim + "/cache/huggingface", "HF_TOKEN_PATH=",
		"TORCHINDUCTOR_CACHE_DIR=" + claim + "/cache/node-0/inductor"}
	shows("before", onClaim...)
	if err := n.Client.SetCaches(t.Context(), agent.Caches{OnNode: true, Why: "flock: ENOLCK"}); err != nil {
		t.Fatal(err)
	}
	moved := []string{"HF_HOME=" + home + "/cache/huggingface", "HF_TOKEN_PATH=" + claim + "/cache/huggingface/token",
		"TORCHINDUCTOR_CACHE_DIR=" + home + "/cache/inductor", "TRITON_CACHE_DIR=" + home + "/cache/triton",
		"TORCH_EXTENSIONS_DIR=" + claim + "/cache/node-0/torch-extensions"}
	shows("moved", moved...)
	n.End()
	n.Restart()
	shows("restarted", moved...)
	facts, err := n.Client.Facts(t.Context())
	if err != nil || facts.Environment["HF_HOME"] != home+"/cache/huggingface" {
		t.Errorf("facts have HF_HOME %q, %v", facts.Environment["HF_HOME"], err)
	}
	if err := n.Client.SetCaches(t.Context(), agent.Caches{}); err != nil {
		t.Fatal(err)
	}
	shows("back", onClaim...)
}

// TestTriesAreConfined: the name of a check leads to no other folder.
func TestTriesAreConfined(t *testing.T) {
	n := newNode(t)
	kept := filepath.Join(n.Config.Paths.Workspace, "kept")
	if err := os.MkdirAll(kept, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, try := range []agent.VolumeTry{
		{Path: agent.Workspace, Check: "../kept"}, {Path: agent.Workspace}, {Path: "/etc", Check: strings.Repeat("A", 26)},
		{Path: agent.Workspace, Check: "A/../../kept/AAAAAAAAAAAAA"},
	} {
		if err := n.Client.ClearTry(t.Context(), try); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("%+v: %v, want InvalidInput", try, err)
		}
		if _, err := n.Client.TryLock(t.Context(), try); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("%+v: %v, want InvalidInput", try, err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}
