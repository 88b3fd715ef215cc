// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

var update = flag.Bool("update", false, "write the kubelet's answers for the tests of the other module")

// expansions are answers of the kubelet's own function, with which the product's tests compare their model of it.
type expansions struct {
	Variables  map[string]string `json:"variables"`
	Expansions [][2]string       `json:"expansions"`
}

// randomText is made of what the kubelet could take for a reference.
func randomText(random *rand.Rand) string {
	parts := []string{"$", "$$", "(", ")", "$(", "HOME", "$(HOME)", "$$(HOME)", "$(A)", "$(NONE)", "$()", "a", " ", "é", "\n", "--", "=",
		"$(params.script)"}
	var text strings.Builder
	for range random.IntN(8) {
		text.WriteString(parts[random.IntN(len(parts))])
	}
	return text.String()
}

// TestKubeletsExpansion checks that the linked kubelet gives the recorded answers, and that doubling every $ keeps any text.
func TestKubeletsExpansion(t *testing.T) {
	const path, count = "../../../kubelet/testdata/expansions.json", 500
	random := rand.New(rand.NewPCG(1, 2))
	now := expansions{Variables: map[string]string{"HOME": "/tekton/home", "A": "$(HOME)", "": "empty"}}
	mapping := expansion.MappingFuncFor(now.Variables)
	for range count {
		text := randomText(random)
		now.Expansions = append(now.Expansions, [2]string{text, expansion.Expand(text, mapping)})
		if kept := expansion.Expand(strings.ReplaceAll(text, "$", "$$"), mapping); kept != text {
			t.Errorf("%q with every $ doubled becomes %q", text, kept)
		}
	}
	want, err := json.MarshalIndent(now, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, append(want, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(bytes.TrimSpace(got), want) {
		t.Errorf("%s is outdated (%v): run this test with -update", path, err)
	}
}
