// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestArrayInText: Tekton 1.9 answers such values with "variable is not properly isolated" when it creates the pod of train.
func TestArrayInText(t *testing.T) {
	pipeline := &v1.Pipeline{Spec: v1.PipelineSpec{Params: v1.ParamSpecs{{Name: "script-args", Type: v1.ParamTypeArray}}}}
	for text, valid := range map[string]bool{
		"$(params.script-args[*])": true, "$(params.script)": true, "a[*]": true, "$$(HOME)": true, `$(params["x"][*])`: true,
		"a $(params.script-args[*])": false, "$(params.other[*])\n": false, `--x=$(params["script-args"][*])`: false,
	} {
		_, err := Params(pipeline, map[string][]string{"script-args": {text}})
		if valid != (err == nil) || err != nil && (fail.ReasonOf(err) != fail.InvalidInput ||
			!strings.Contains(err.Error(), "which Tekton refuses")) {
			t.Errorf("%q: got %v, want valid %t", text, err, valid)
		}
	}
}
