// SPDX-License-Identifier: Apache-2.0

package script

import (
	"path"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	for _, tc := range []struct {
		name   string
		files  map[string]string
		script string
		want   Arguments
	}{
		{"an ordinary script", map[string]string{"train.py": "parser.add_argument('--lr')\n# parser.add_argument('--local_rank')\n"}, "train.py",
			Arguments{}},
		{"argparse", map[string]string{"train.py": "\nparser.add_argument(\n    '--local_rank',\n    type=int)\n"}, "train.py",
			Arguments{LocalRank: "train.py:2"}},
		{"another name first", map[string]string{"train.py": `p.add_argument("--local-rank", "--local_rank", type=int)`}, "train.py",
			Arguments{LocalRank: "train.py:1"}},
		{"torch's newer spelling is not DeepSpeed's", map[string]string{"train.py": `p.add_argument("--local-rank", type=int)`}, "train.py",
			Arguments{}},
		{"an alias", map[string]string{"train.py": "add = parser.add_argument\nadd('--lr')\nadd('--local_rank', type=int)"}, "train.py",
			Arguments{LocalRank: "train.py:3"}},
		{"a dataclass", map[string]string{"train.py": "from args import Args\nargs, = HfArgumentParser(Args).parse_args_into_dataclasses()\n",
			"args.py": "@dataclass(frozen=True)\nclass Args:\n    lr: float = 1.0\n\n    local_rank: int = field(default=-1)\n"}, "train.py",
			Arguments{LocalRank: "args.py:5", Trainer: "train.py:2"}},
		{"a dataclass that no parser reads", map[string]string{"train.py": "@dataclass\nclass State:\n    local_rank: int = 0\n"}, "train.py",
			Arguments{}},
		{"a parameter beside a dataclass", map[string]string{"train.py": "from tap import Tap\n@dataclass\nclass Args:\n    lr: float\n\n" +
			"def worker(\n    local_rank: int,\n):\n"}, "train.py", Arguments{}},
		{"typed-argument-parser", map[string]string{"train.py": "from tap import Tap\nclass Args(Tap):\n    local_rank: int = -1\n"}, "train.py",
			Arguments{LocalRank: "train.py:3"}},
		{"DeepSpeed's own", map[string]string{"train.py": "parser = deepspeed.add_config_arguments(parser)"}, "train.py",
			Arguments{Added: "train.py:1"}},
		{"a configuration with a dash", map[string]string{"train.py": "p.add_argument('--deepspeed-config', type=str)"}, "train.py",
			Arguments{DashConfig: "train.py:1"}},
		{"click", map[string]string{"train.py": "@click.option('--local_rank', default=0)"}, "train.py", Arguments{LocalRank: "train.py:1"}},
		{"Trainer", map[string]string{"train.py": "parser = HfArgumentParser((ModelArguments, TrainingArguments))"}, "train.py",
			Arguments{Trainer: "train.py:1"}},
		{"a module of its folder", map[string]string{"src/train.py": "from utils import options\n", "src/utils/__init__.py": "",
			"src/utils/options.py": "p.add_argument('--deepspeed_config')", "utils.py": "p.add_argument('--local_rank')"}, "src/train.py",
			Arguments{Config: "src/utils/options.py:1"}},
		{"a relative import, and a circle", map[string]string{"src/train.py": "from . import (\n  args,\n  train)\n",
			"src/args.py": "import train\np.add_argument('--deepspeed')"}, "src/train.py", Arguments{Switch: "src/args.py:2"}},
		{"several imports", map[string]string{"train.py": "import os, a.b as c, d\n", "a/b.py": "", "d.py": "import e",
			"e.py": "add_argument('--local_rank')"}, "train.py", Arguments{LocalRank: "e.py:1"}},
		{"the top of the tree", map[string]string{"tools/train.py": "sys.path.append('.')\nfrom lib.args import parser",
			"lib/args.py": "x.add_argument('--local_rank')"},
			"tools/train.py", Arguments{LocalRank: "lib/args.py:1"}},
		{"no file", nil, "train.py", Arguments{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tree := fstest.MapFS{}
			for name, text := range tc.files {
				tree[name] = &fstest.MapFile{Data: []byte(text)}
			}
			if diff := cmp.Diff(tc.want, Read(tree, []string{tc.script}, path.Dir(tc.script))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
