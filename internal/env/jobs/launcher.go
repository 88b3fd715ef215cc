// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/script"
)

// AutoLauncher returns what launcher auto is for a script, and why; config is a DeepSpeed configuration, "" for none. What cannot be
// decided is torchrun's.
func AutoLauncher(spec agent.JobSpec, takes script.Arguments, config string) (chosen agent.Launcher, why string) {
	switch {
	case takes.LocalRank != "":
		return agent.DeepSpeed, takes.LocalRank + " declares --local_rank"
	case takes.Added != "":
		return agent.DeepSpeed, takes.Added + " adds DeepSpeed's arguments"
	case config != "":
		return agent.DeepSpeed, "a DeepSpeed configuration is given"
	}
	why = " declares no --local_rank, and none of DeepSpeed's arguments"
	if spec.Tree == "" || filepath.IsAbs(spec.Script) || !agent.IsPython(spec.Script) {
		why = " is not a Python script of the repository"
	}
	return agent.Torchrun, spec.Script + why
}
