// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
)

func TestAxis(t *testing.T) {
	for _, tc := range []struct {
		given string
		want  []string
		err   string
	}{
		{"lr=1e-4,3e-4", []string{"1e-4", "3e-4"}, ""},
		{"seed=1..3", []string{"1", "2", "3"}, ""},
		{"seed=-1..1", []string{"-1", "0", "1"}, ""},
		{"seed=5..5", []string{"5"}, ""},
		{"seed=1..3,7", []string{"1", "2", "3", "7"}, ""},
		{"data=../a,/b/../c,..", []string{"../a", "/b/../c", ".."}, ""},
		{"optimizer.lr=a b,x=y", []string{"a b", "x=y"}, ""},
		{"lr", nil, "want ARG=VALUE,VALUE"},
		{"=1", nil, `argument ""`},
		{"--lr=1", nil, "without hyphens before it"},
		{"l r=1", nil, `argument "l r"`},
		{"lr=", nil, "a value is empty"},
		{"lr=1,,2", nil, "a value is empty"},
		{"lr=1, 2", nil, `value " 2": want no space`},
		{"lr=1,2,1", nil, "value 1 is there twice"},
		{"seed=1..3,2", nil, "value 2 is there twice"},
		{"seed=3..1", nil, "want the smaller number first"},
		{"lr=0.1..0.3", nil, `range "0.1..0.3": want FIRST..LAST with two whole numbers`},
		{"seed=1..3..2", nil, "two whole numbers"},
		{"seed=1..", nil, "two whole numbers"},
		{"seed=01..03", nil, "two whole numbers"},
		{"seed=1...3", nil, "two whole numbers"},
		{"seed=1..1000000000", nil, "1000000000 values: want at most 100"},
		{"seed=1..99999999999", nil, "at most 32 bits"},
		{"-=,3..1", nil, `argument "-"`},
		{"-=,3..1", nil, "a value is empty"},
		{"-=,3..1", nil, "the smaller number first"},
	} {
		a, err := parseAxis(tc.given)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: got %v, want %q", tc.given, err, tc.err)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, a.values); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", tc.given, err, diff)
		}
	}
}

func TestTrials(t *testing.T) {
	s := sweep{given: []string{"lr=1e-4,3e-4", "seed=1..2"}}
	if err := s.parse(); err != nil {
		t.Fatal(err)
	}
	args := []string{"--epochs", "3", "seeds/{seed}"}
	var got []string
	for _, one := range s.trials("sizes", args) {
		got = append(got, fmt.Sprintf("%s (%s) %q", one.name, one.text(), one.args))
	}
	want := []string{
		`sizes-1 (lr=1e-4 seed=1) ["--epochs" "3" "seeds/1" "--lr=1e-4"]`,
		`sizes-2 (lr=1e-4 seed=2) ["--epochs" "3" "seeds/2" "--lr=1e-4"]`,
		`sizes-3 (lr=3e-4 seed=1) ["--epochs" "3" "seeds/1" "--lr=3e-4"]`,
		`sizes-4 (lr=3e-4 seed=2) ["--epochs" "3" "seeds/2" "--lr=3e-4"]`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"--epochs", "3", "seeds/{seed}"}, args); diff != "" {
		t.Errorf("the given arguments have changed:\n%s", diff)
	}
}

// The same command always has the same name, whatever --parallel is; another value, argument or folder has another one.
func TestSweepName(t *testing.T) {
	name := func(change func(*runOptions)) string {
		o := &runOptions{values: map[string][]string{"repo-url": {"."}, "script": {"train.py"}, "script-args": {"--epochs=3"}, "nodes": {"2"}}}
		o.sweep.given = []string{"lr=1,2"}
		change(o)
		return o.sweepName()
	}
	first := name(func(*runOptions) {})
	if again := name(func(o *runOptions) { o.sweep.parallel = 4 }); again != first || !strings.HasPrefix(first, "sweep-") {
		t.Errorf("got %s and %s, want one name that begins with sweep-", first, again)
	}
	for what, change := range map[string]func(*runOptions){
		"values":    func(o *runOptions) { o.sweep.given = []string{"lr=1,3"} },
		"arguments": func(o *runOptions) { o.values["script-args"] = nil },
		"a param":   func(o *runOptions) { o.values["nodes"] = []string{"3"} },
		"a folder":  func(o *runOptions) { o.values["repo-url"] = []string{".."} },
		"a run":     func(o *runOptions) { o.like = "other" },
	} {
		if name(change) == first {
			t.Errorf("with other %s the name is the same", what)
		}
	}
	if got := name(func(o *runOptions) { o.runName = "mine" }); got != "mine" {
		t.Errorf("got %s, want the given name", got)
	}
}

// All mistakes of a command line come at once, and before anything is asked of a cluster or started.
func TestSweepMistakes(t *testing.T) {
	job := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(job, []byte("repo-url: https://example.com/r\nscript: train.py\nname: mine\nresume-from: other\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	usual := []string{"https://example.com/r", "train.py"}
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"without a sweep", append(usual, "--parallel=2", "-o=json"), []string{"--parallel: want --sweep", "--output: want --sweep"}},
		{"values, and an argument", append(usual, "third", "--sweep=lr=1,1", "--sweep=seed=2..1"),
			[]string{`arguments ["third"]`, "value 1 is there twice", "the smaller number first"}},
		{"an argument twice", append(usual, "--sweep=lr=1", "--sweep=lr=2"), []string{"--sweep lr is given several times"}},
		{"too many", append(usual, "--sweep=a=1..11", "--sweep=b=1..10"), []string{"more than 100 combinations: want at most 100"}},
		{"far too many", append(usual, "--sweep=a=1..100", "--sweep=b=1..100", "--sweep=c=1..100", "--sweep=d=1..100", "--sweep=e=1..100",
			"--sweep=f=1..100", "--sweep=g=1..100", "--sweep=h=1..100", "--sweep=i=1..100", "--sweep=j=1..100"), []string{"more than 100"}},
		{"parallel", append(usual, "--sweep=a=1", "--parallel=0"), []string{"--parallel 0: want 1 to 100"}},
		{"what a sweep refuses", append(usual, "--sweep=a=1,2", "--parallel=2", "--name=mine", "--resume-from=other",
			"--run-name="+strings.Repeat("a", 60)),
			[]string{"--parallel=2 and --name", "--sweep and --resume-from", "want at most 59 characters"}},
		{"of a job file", []string{"-f", job, "--sweep=a=1,2", "--parallel=2"}, []string{"--parallel=2 and --name", "--sweep and --resume-from"}},
		{"detached", append(usual, "--sweep=a=1,2,3", "--parallel=2", "--detach"),
			[]string{"--detach with --parallel=2: no program would start the rest of the 3 trials; want --parallel=3"}},
		{"local", append(usual, "--sweep=a=1,2", "--parallel=2", "--local"), []string{"--parallel=2 and --local"}},
	} {
		cmd := RunCommand(mldevenv.Bundle)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(io.Discard)
		cmd.SetArgs(tc.args)
		err := cmd.ExecuteContext(t.Context())
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v\nwant %q", tc.name, err, want)
			}
		}
	}
}
