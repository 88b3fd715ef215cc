// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/pylib"
)

// Launcher auto has only read the script; what the parser takes decides when it runs.
func TestLocalRankOfTheParser(t *testing.T) {
	const taken = "p.add_argument('--local_rank', type=int, default=-1)\n"
	for name, tc := range map[string]struct {
		script string
		args   []string
		// passed: auto saw --local_rank in the script. named: the user named the launcher.
		passed, named bool
		hook          string
		want          string
	}{
		"taken":                 {script: taken + "print(p.parse_args())\n", want: "Namespace(local_rank=1)\n"},
		"taken, and passed":     {script: taken + "print(p.parse_args())\n", passed: true, want: "Namespace(local_rank=1)\n"},
		"not taken, but passed": {script: "print(p.parse_args())\n", passed: true, want: "Namespace()\n"},
		"arguments that nobody knows": {script: "print(p.parse_known_args())\n", args: []string{"--lr=1"}, passed: true,
			want: "(Namespace(), ['--lr=1'])\n"},
		"given by the user": {script: taken + "print(p.parse_args())\n", args: []string{"--local_rank", "7"}, want: "Namespace(local_rank=7)\n"},
		"torch's newer spelling": {script: "p.add_argument('--local-rank', type=int, required=True)\nprint(p.parse_args())\n", passed: true,
			want: "Namespace(local_rank=1)\n"},
		"of a subcommand": {script: "s = p.add_subparsers().add_parser('train')\ns.add_argument('--local_rank', type=int)\n" +
			"print(p.parse_args())\n", args: []string{"train"}, passed: true, want: "Namespace(local_rank=1)\n"},
		"arguments that the script names": {script: taken + "print(p.parse_args(['--local_rank=3']), p.parse_args(['x'][1:]))\n",
			args: []string{"--lr=1"}, passed: true, want: "Namespace(local_rank=3) Namespace(local_rank=-1)\n"},
		"a switch of that name": {script: "p.add_argument('--local_rank', action='store_true')\nprint(p.parse_args())\n",
			want: "Namespace(local_rank=False)\n"},
		"another program": {script: "import subprocess, sys\nif len(sys.argv) == 1:\n  subprocess.run([sys.executable, 'a.py', '--child'])\n" +
			"p.add_argument('--child', action='store_true')\n" + taken + "if len(sys.argv) > 1: print(p.parse_args())\n",
			want: "Namespace(child=True, local_rank=-1)\n"},
		"a launcher that was named": {script: taken + "print(p.parse_args())\n", named: true, want: "Namespace(local_rank=-1)\n"},
		"no hook":                   {script: taken + "print(p.parse_args())\n", hook: pylib.None, want: "Namespace(local_rank=-1)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			script := "import argparse\nimport builtins\np = argparse.ArgumentParser()\n" +
				"def print(*words): builtins.print(*words, file=open('out', 'a'))\n" + tc.script
			env := map[string]string{"RANK": "1", "LOCAL_RANK": "1", pylib.HookVariable: tc.hook}
			if !tc.named {
				env[pylib.AutoVariable] = "shim"
			}
			if tc.passed {
				env[LocalRankAtVariable] = "2"
			}
			_, of := hooked(t, map[string]string{"a.py": script}, env)
			code := Main(append([]string{"python3", "a.py"}, tc.args...), fstest.MapFS{})
			got, _ := os.ReadFile("out")
			if code != 0 || string(got) != tc.want {
				status, _ := of.ReadRank(1)
				t.Errorf("exit code %d, printed %q, want %q; %q", code, got, tc.want, status.Tail)
			}
		})
	}
}
