// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// TracerVariable is the process whose descendants may read the stacks of the rank: the agent's, which starts py-spy.
const TracerVariable = "MLENV_TRACER"

// scopeFile has the kernel's rule for tracing. At 1 only ancestors may trace a process, and the process that it names by prctl;
// py-spy is not an ancestor of a rank. A kernel without Yama has no such file and no such rule.
const scopeFile = "/proc/sys/kernel/yama/ptrace_scope"

// traceable returns the command by which the rank starts: through this program, if the kernel asks for a process's consent.
func traceable(command []string, scope []byte) []string {
	const ancestors = "1"
	self, err := os.Executable()
	if strings.TrimSpace(string(scope)) != ancestors || err != nil {
		return command
	}
	if _, err := exec.LookPath(command[0]); err != nil { // the error of starting it directly is better
		return command
	}
	return append([]string{self, "traced", "--"}, command...)
}

// Traced lets the tracer read this process's memory, and becomes the command. The consent survives that only if the first
// thread of the process does it: another one would take its place, and the kernel forgets the consent with the first. Go may run
// on any thread, so the process starts again until it runs on the first one.
func Traced(command []string) error {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return fmt.Errorf("running %s again: %w", self, syscall.Exec(self, os.Args, os.Environ()))
	}
	tracer, err := strconv.Atoi(os.Getenv(TracerVariable))
	if err != nil {
		return fmt.Errorf("reading %s: %w", TracerVariable, err)
	}
	// Without consent there are no stacks of Python; the rank runs all the same.
	_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(tracer), 0, 0, 0)
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", program, syscall.Exec(program, command, os.Environ()))
}
