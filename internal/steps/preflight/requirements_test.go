// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/pypi"
)

// Requirements that do not resolve are found before GPUs are held: every one of them, in the file and in those that it includes. An index
// that does not answer is no failure.
func TestRequirementsOfARun(t *testing.T) {
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch strings.Trim(r.URL.Path, "/") {
		case "numpy", "wandb":
			w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			fmt.Fprint(w, `{"versions": ["1.26.4", "2.4.0"]}`)
		case "slow":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer index.Close()
	from := "--index-url " + index.URL + "\n"
	url := gitServerOf(t, map[string]string{
		"train.py": "", "good.txt": from + "numpy<2\nwandb\n", "bad.txt": from + "numpy>=3\n-r src/more.txt\n", "src/more.txt": "wanbd==0.1\n",
		"slow.txt": from + "slow\nnumpy\n", "local.txt": "--find-links wheels\nmine\n",
	})
	for _, tc := range []struct {
		file   string
		want   []want
		reason fail.Reason
	}{
		{"good.txt", []want{{"packages", OK, "the index has 2 requirements", ""}}, ""},
		{"bad.txt", []want{
			{"packages", Blocked, `"numpy>=3": ` + index.URL + " has no such version; the newest are 2.4.0, 1.26.4",
				"correct it in the requirements"},
			{"packages", Blocked, `"wanbd==0.1": no package of that name at ` + index.URL, ""},
		}, fail.RequirementsFailed},
		{"slow.txt", []want{{"packages", Unknown, "1 of 2 requirements have no answer: " + index.URL + " answers 503", ""}}, ""},
		{"local.txt", []want{{"packages", Unknown, "no index was asked", ""}}, ""},
	} {
		t.Run(tc.file, func(t *testing.T) {
			w, file := barcelona(t)
			values := map[string]string{"repo-url": url, "script": "train.py", "requirements": tc.file}
			report := w.examine(file, agent.Auto, inRun(ownRun(t, values)), func(_ *Deps, o *Options) { o.Scratch = t.TempDir() })
			for _, want := range tc.want {
				if !slices.ContainsFunc(report.Checks, func(c Check) bool {
					return c.Object == want.check && c.Status == want.status && strings.Contains(c.Seen, want.seen) && strings.Contains(c.Next, want.fix)
				}) {
					t.Errorf("no check %+v in\n%s", want, print(report))
				}
			}
			if err := report.Err(); (err == nil) != (tc.reason == "") || err != nil && fail.ReasonOf(err) != tc.reason {
				t.Errorf("got %v, want %q", err, tc.reason)
			}
		})
	}
}

// A finished image may configure another index: a name that the default one lacks is only a warning there.
func TestUnsureRequirements(t *testing.T) {
	answer := pypi.Answer{Found: 1, Problems: []pypi.Problem{{NoName: true, Seen: "no package of that name"}, {Seen: "no such version"}}}
	for sure, want := range map[bool][]Status{true: {Blocked, Blocked}, false: {Warning, Blocked}} {
		checks := requirementsChecks("packages", answer, sure)
		if len(checks) != 2 || checks[0].Status != want[0] || checks[1].Status != want[1] {
			t.Errorf("sure %t: got %+v, want %v", sure, checks, want)
		}
	}
}
