// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// overSSH reaches node 1 of an environment with the programs of OpenSSH and rsync, through the API server. The image has no sshd.
func (u trainer) overSSH() {
	u.Helper()
	dir := u.TempDir()
	state := append(os.Environ(), "XDG_STATE_HOME="+dir)
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	write := u.mlenvIn(ctx, dir, "ssh-config", "--node=1")
	write.Env = state
	written, err := write.Output()
	if err != nil {
		u.Fatalf("mlenv ssh-config: %v", err)
	}
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, written, 0o600); err != nil {
		u.Fatal(err)
	}
	ends := func(code int, says, program string, args ...string) {
		u.Helper()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env, cmd.Dir = state, dir
		out, err := cmd.CombinedOutput()
		if got := codeOf(err); got != code {
			u.Fatalf("%s %q: exit code %d, want %d:\n%s", program, args, got, code, out)
		}
		u.mustContain(string(out), says)
	}
	const host, exitCode = "mlenv-ml-dev-env-1", 42
	ends(command.Done, "ml-dev-env-1", "ssh", "-F", config, host, "hostname")
	ends(command.Done, "NODE_RANK=1", "ssh", "-F", config, host, "env")
	ends(exitCode, "", "ssh", "-F", config, host, "exit 42")
	content := bytes.Repeat([]byte("of the file\n"), 1<<20)
	if err := os.WriteFile(filepath.Join(dir, "file"), content, 0o644); err != nil {
		u.Fatal(err)
	}
	ends(command.Done, "", "scp", "-F", config, "file", host+":/workspace/of-scp")
	ends(command.Done, "", "scp", "-F", config, host+":/workspace/of-scp", "back")
	ends(command.Done, "", "rsync", "-a", "-e", "ssh -F "+config, host+":/workspace/of-scp", "of-rsync")
	for _, name := range []string{"back", "of-rsync"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, content) {
			u.Errorf("%s has %d bytes, %v; want the %d that were sent", name, len(got), err, len(content))
		}
	}
	ends(command.Done, "", "ssh", "-F", config, host, "rm /workspace/of-scp")
}
