package checkfabric

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// The step reports every mistake at once, before it contacts a cluster.
func TestFlagsOfPods(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"--pods=a --name=other --idle=1s --run-uid=1 --timeout=1s", []string{`--pods "a": one pod`, `--name "other": it is of an environment`, `--run-uid "1": it is`, "--idle 1s: want at least 5s", `--timeout "1s"`}},
		{"--container=main --agent=x", []string{"--container: want --pods with it", "--agent: want --pods with it"}},
	} {
		var out bytes.Buffer
		if code := step.Run(t.Context(), Command(), strings.Fields(test.args), &out, &out); code != step.WrongUsage {
			t.Errorf("%s: exit code %d, want %d", test.args, code, step.WrongUsage)
		}
		for _, want := range test.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is missing in:\n%s", test.args, want, out.String())
			}
		}
	}
}
