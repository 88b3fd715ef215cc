// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"os"
	"testing"
)

// TestExpand compares the model with answers of the kubelet's own function, which a test of the local cluster has written.
func TestExpand(t *testing.T) {
	content, err := os.ReadFile("testdata/expansions.json")
	if err != nil {
		t.Fatal(err)
	}
	var known struct {
		Variables  map[string]string `json:"variables"`
		Expansions [][2]string       `json:"expansions"`
	}
	if err := json.Unmarshal(content, &known); err != nil {
		t.Fatal(err)
	}
	if len(known.Expansions) < 100 {
		t.Fatalf("%d expansions, want some hundred", len(known.Expansions))
	}
	for _, pair := range known.Expansions {
		if got := Expand(pair[0], known.Variables); got != pair[1] {
			t.Errorf("%q: got %q, the kubelet's is %q", pair[0], got, pair[1])
		}
	}
}
