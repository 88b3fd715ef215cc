// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// TestPlacesOfPaths: a relative path is one that the run wrote, or else one on the workspace.
func TestPlacesOfPaths(t *testing.T) {
	const record, work = ".mlenv/runs/uid", ".mlenv/work/uid"
	r := runInfo{name: "mine", at: onCluster{}, receipt: &receipt.Receipt{RunUID: "uid"}}
	for given, want := range map[string][]string{
		"out":                     {work + "/out", "out"},
		"out/../model.pt":         {work + "/model.pt", "model.pt"},
		"checkpoints/mine":        {work + "/checkpoints/mine", "checkpoints/mine"},
		"/workspace/out":          {"out"},
		"/workspace":              {"."},
		".":                       {"."},
		"logs":                    {record},
		"logs/rank-0":             {work + "/logs/rank-0", "logs/rank-0"},
		"work":                    {work},
		"work/logs":               {work + "/work/logs", work + "/logs", "work/logs"},
		"workspace/x":             {work + "/workspace/x", "workspace/x"},
		"..data/x":                {work + "/..data/x", "..data/x"},
		"/workspace/" + work + "": {work},
	} {
		paths, err := r.paths([]string{given})
		if err != nil {
			t.Errorf("%s: %v", given, err)
			continue
		}
		if diff := cmp.Diff(want, paths[0].Places); diff != "" {
			t.Errorf("%s (-want +got):\n%s", given, diff)
		}
	}
	for _, given := range []string{"../x", "..", "/etc/passwd", "/workspaces", "a/../../b", "/workspace/../etc"} {
		if _, err := r.paths([]string{given}); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("%s: got %v, want InvalidInput", given, err)
		}
	}
	all, err := r.paths(nil)
	if err != nil || len(all) != 3 || all[1].Places[0] != work {
		t.Errorf("without a path: %v, %v; want logs, work and checkpoints", all, err)
	}
}
