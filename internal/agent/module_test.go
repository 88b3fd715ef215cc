// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestModule(t *testing.T) {
	for script, want := range map[string]string{
		"-m pkg.main": "pkg.main", "-m train": "train", " -m  my-pkg._main ": "my-pkg._main", "-mpkg.main": "pkg.main",
		"train.py": "", "-m": "", "-m ": "", "-m pkg/main.py": "", "-m pkg.main --lr 3": "", "-m .main": "", "-m pkg.": "", "-m pkg..main": "",
		"-m --help": "", "--m pkg": "", "python -m pkg": "", "m pkg": "",
	} {
		if got := agent.Module(script); got != want {
			t.Errorf("%q: got %q, want %q", script, got, want)
		}
	}
}
