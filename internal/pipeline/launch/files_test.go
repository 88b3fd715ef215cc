// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNamedFiles(t *testing.T) {
	repository := map[string]bool{"train.py": true, "run.sh": true, "pkg/__init__.py": true, "pkg/main.py": true, "app/__main__.py": true,
		"plain/train.py": true}
	exists := func(path string) bool { return repository[path] }
	for _, test := range []struct {
		script, launcher string
		// want is the path that is looked for, "" for none; next is what is advised if it is missing.
		want, next string
	}{
		{"train.py", "deepspeed", "train.py", ""},
		{"nvidia-smi", "command", "", ""},
		{"/opt/train.py", "deepspeed", "", ""},
		{"-m pkg.main", "deepspeed", "pkg/main.py", ""},
		{"-m app", "torchrun", "app/__main__.py", ""},
		{"-m plain.train", "command", "plain/train.py", ""},
		// Other packages may be installed in the image, or without __init__.py lie in several places.
		{"-m accelerate.commands.launch", "command", "", ""},
		{"-m plain.other", "command", "", ""},
		{"-m pkg.mian", "torchrun", "pkg/mian.py", "by its path from the top"},
		{"-m train.py", "torchrun", "train/py.py", "name the file, train.py, or the module, -m train"},
		{"pkg.main", "torchrun", "pkg.main", "name the file, pkg/main.py, or the module, -m pkg.main"},
		{"pkg/main", "torchrun", "pkg/main", "name the file, pkg/main.py, or the module, -m pkg.main"},
		{"app", "deepspeed", "app", "name the file, app/__main__.py, or the module, -m app"},
		{"train.py --epochs 3", "deepspeed", "train.py --epochs 3", "mlenv run they go after --: train.py -- --epochs 3"},
		{"python train.py --epochs 3", "deepspeed", "python train.py --epochs 3", "they go after --: train.py -- --epochs 3"},
		{"torchrun train.py", "torchrun", "torchrun train.py", "name only the script, which the launcher starts: train.py"},
		{"bash run.sh", "command", "bash run.sh", "name only the script, which the launcher starts: run.sh"},
	} {
		var got string
		for _, file := range NamedFiles(func(param string) string {
			return map[string]string{"script": test.script, "launcher": test.launcher}[param]
		}, exists) {
			if file.Param == "script" {
				got = file.Path
			}
			if next := file.NextStep(exists); test.next != "" && !strings.Contains(next, test.next) {
				t.Errorf("%s: next %q, want %q", test.script, next, test.next)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s with %s (-want +got):\n%s", test.script, test.launcher, diff)
		}
	}
}
