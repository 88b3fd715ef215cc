package runs

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// What is parsed is looked at without a cluster: RunE is never reached.
func TestArguments(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want map[string][]string
		err  []string
	}{
		{"a repository", []string{"https://example.com/r", "train.py", "--nodes=3", "--env=A=1", "--env=B=2", "--", "--epochs", "3"},
			map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"train.py"}, "nodes": {"3"}, "env": {"A=1", "B=2"}, "script-args": {"--epochs", "3"}}, nil},
		{"by flags", []string{"--repo-url=r", "--script=s", "--param=timeout=24h", "--param=script-args=a", "--param=script-args=b"},
			map[string][]string{"repo-url": {"r"}, "script": {"s"}, "timeout": {"24h"}, "script-args": {"a", "b"}}, nil},
		{"like another, no arguments of the script", []string{"--like=other", "--"}, map[string][]string{"script-args": {}}, nil},
		{"nothing", nil, nil, []string{"the repository's URL, or a folder", "the training script"}},
		{"all mistakes", []string{"r", "s", "t", "--script=u", "--script-args=x", "--param=y", "--param=nodes=1", "--nodes=2", "--", "z"}, nil,
			[]string{`arguments ["t"]`, `argument "s" and --script`, "arguments after -- and --script-args", `--param "y": want NAME=VALUE`, "--param nodes and --nodes"}},
		{"one param twice", []string{"r", "s", "--param=nodes=1", "--param=nodes=2"}, nil, []string{"--param nodes is given 2 times"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pipeline, err := pipelineOf(mldevenv.Bundle)
			if err != nil {
				t.Fatal(err)
			}
			o := runOptions{params: params{pipeline: pipeline}}
			cmd := RunCommand(mldevenv.Bundle)
			cmd.ResetFlags()
			o.params.addTo(cmd.Flags())
			cmd.Flags().StringVar(&o.like, "like", "", "")
			if err := cmd.ParseFlags(tc.args); err != nil {
				t.Fatal(err)
			}
			err = o.parse(cmd, cmd.Flags().Args())
			if len(tc.err) > 0 {
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range tc.err {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("got %v, want %q in it", err, want)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := o.given(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestResume(t *testing.T) {
	k := known{name: "second", receipt: &receipt.Receipt{Commit: "c0ffee"}}
	for _, tc := range []struct {
		name                string
		values, given, want map[string][]string
	}{
		{"the commit, and where checkpoints are", map[string][]string{"env": {"A=1"}, "revision": {"main"}}, nil,
			map[string][]string{"env": {"A=1", "MLENV_RESUME_FROM=second"}, "revision": {"c0ffee"}}},
		{"of a run that resumed another", map[string][]string{"env": {"MLENV_RESUME_FROM=first", "A=1"}}, nil,
			map[string][]string{"env": {"A=1", "MLENV_RESUME_FROM=first"}, "revision": {"c0ffee"}}},
		{"another revision", map[string][]string{"revision": {"fix"}}, map[string][]string{"revision": {"fix"}},
			map[string][]string{"env": {"MLENV_RESUME_FROM=second"}, "revision": {"fix"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k.resume(tc.values, tc.given)
			if diff := cmp.Diff(tc.want, tc.values); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPaths(t *testing.T) {
	k := known{name: "mine", receipt: &receipt.Receipt{RunUID: "uid"}}
	for _, tc := range []struct {
		given, want []string
	}{
		{nil, []string{".mlenv/runs/uid", "checkpoints/mine"}},
		{[]string{"logs", "/workspace/out/", "a/../b", "/workspace"}, []string{".mlenv/runs/uid", "out", "b", "."}},
		{[]string{"../x", "/etc", "/workspaces"}, nil},
	} {
		got, err := k.paths(tc.given)
		if (err != nil) != (tc.want == nil) {
			t.Errorf("%q: %v", tc.given, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.given, diff)
		}
	}
}

func TestReceiptOfAFailure(t *testing.T) {
	var out bytes.Buffer
	if err := printReceipt(&out, receipt.Receipt{Run: "mine", Namespace: "ns", Verdict: receipt.Failed, Reason: "RankFailed", Message: "rank 1\nexited"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("run      ns/mine\nverdict  Failed\nreason   RankFailed\nmessage  rank 1 exited\n", out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
