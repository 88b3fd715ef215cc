package server

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// scriptAt is where the script is in the command line of a Python rank, after the
// interpreter and -u.
const scriptAt = 2

// checkDebug looks at what a job asks for, before anything of it is started.
func checkDebug(spec agent.JobSpec) (problems []error) {
	if spec.DebugRank == nil {
		return nil
	}
	if spec.Launcher == agent.Command {
		problems = append(problems, fmt.Errorf("debugRank: %d: launcher command starts programs and no ranks; want deepspeed or torchrun", *spec.DebugRank))
	}
	if last := spec.Nodes*spec.RanksPerNode - 1; *spec.DebugRank < 0 || *spec.DebugRank > last {
		problems = append(problems, fmt.Errorf("debugRank: %d: the job has ranks 0 to %d", *spec.DebugRank, last))
	}
	if filepath.Ext(spec.Script) != ".py" {
		problems = append(problems, fmt.Errorf("debugRank: %d: script %q is not Python's, which ends in .py", *spec.DebugRank, spec.Script))
	}
	return problems
}

// debug has one rank wait for a debugger, and the others for that rank.
func (c Config) debug(spec agent.JobSpec, python string, l launch) error {
	if slices.Contains(l.ranks, *spec.DebugRank) {
		find := exec.Command(python, "-c", "import debugpy")
		find.Dir, find.Env = l.dir, list(l.env)
		if output, err := find.CombinedOutput(); err != nil {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "starting the job: rank %d cannot wait for a debugger: %s has no debugpy: %w: %s", *spec.DebugRank, python, err, output),
				"add debugpy to the requirements file that the param requirements names, or to the image")
		}
	}
	l.env[rank.DebugVariable], l.env[rank.DebugAtVariable] = strconv.Itoa(*spec.DebugRank), strconv.Itoa(scriptAt)
	// DeepSpeed's ranks wait for each other this many minutes, 10 or 30 by itself.
	if _, given := l.env["DEEPSPEED_TIMEOUT"]; !given && !spec.Deadline.IsZero() {
		l.env["DEEPSPEED_TIMEOUT"] = strconv.Itoa(max(1, int(math.Ceil(time.Until(spec.Deadline).Minutes()))))
	}
	return nil
}
