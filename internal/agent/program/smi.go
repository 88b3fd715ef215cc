// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// execNvidiaSMI becomes the container's nvidia-smi, which shows a privileged pod all GPUs of its node, and limits it to those that the pod
// was given.
func execNvidiaSMI(args, environ []string) error {
	path, _ := agent.Variable(environ, "PATH")
	own, _ := agent.Variable(environ, agent.OwnGPUs)
	program, err := nextSMI(path)
	if err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", program, syscall.Exec(program, append([]string{agent.SMI}, limited(args, own)...), environ))
}

// nextSMI returns the first nvidia-smi in path that is not this program.
func nextSMI(path string) (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", err
	}
	for _, dir := range filepath.SplitList(path) {
		program, err := agent.FindProgram(agent.SMI, dir)
		if err != nil {
			continue
		}
		if info, err := os.Stat(program); err == nil && !os.SameFile(self, info) {
			return program, nil
		}
	}
	return "", fmt.Errorf("finding %s: %w", agent.SMI, fs.ErrNotExist)
}

// limited returns the arguments with --id for the GPUs, unless they choose GPUs themselves or cannot be limited: subcommands such as
// topo have options of their own, help takes no options, and MIG devices are not GPUs.
func limited(args []string, own string) []string {
	if own == "" || strings.Contains(own, "MIG-") || len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return args
	}
	if slices.ContainsFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "-i") || strings.HasPrefix(arg, "--id") || slices.Contains([]string{"-h", "--help", "--version"}, arg)
	}) {
		return args
	}
	return append(slices.Clone(args), "--id="+own)
}
