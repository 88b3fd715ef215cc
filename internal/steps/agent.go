// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// BecomeAgent replaces this process by the agent, which the steps image has for each platform in ko's folder of data
// (https://ko.build/features/static-assets). It returns only if that fails.
func BecomeAgent(args, environ []string) error {
	program := filepath.Join(os.Getenv("KO_DATA_PATH"), "linux-"+runtime.GOARCH, agent.ProgramName)
	return fmt.Errorf("starting %s: %w", program, syscall.Exec(program, append([]string{program}, args...), environ))
}
