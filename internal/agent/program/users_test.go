// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
)

// TestUsersOfAClaim: a shell of one mode can change what a shell of the other wrote to a claim, except files that a program made private.
// In mode rdma a pod's user is root, in mode tcp a random one of group 0. A test that is not run by root has one user for both.
func TestUsersOfAClaim(t *testing.T) {
	const variable = "MLENV_TEST_SHELL"
	if script := os.Getenv(variable); script != "" {
		syscall.Umask(0o022) // the container runtime's
		config := server.Config{Environ: os.Environ(), Paths: server.Paths{Workspace: "."}}
		t.Fatal(shell(config, []string{"sh", "-ec", script}))
	}
	// NFS keeps the group of the user, 0. Elsewhere the kubelet gives the claim the pod's fsGroup, which new files inherit.
	for _, group := range []int{0, 1000660000} {
		t.Run(fmt.Sprint("group ", group), func(t *testing.T) { shareAClaim(t, group, variable) })
	}
}

func shareAClaim(t *testing.T, group int, variable string) {
	t.Helper()
	claim, mode := t.TempDir(), os.FileMode(0o775)
	root, random := os.Getuid(), os.Getuid()
	if root == 0 {
		random = 1000660000
		if err := os.Chown(claim, 0, group); err != nil {
			t.Fatal(err)
		}
		if group != 0 {
			mode |= os.ModeSetgid
		}
	}
	if err := os.Chmod(claim, mode); err != nil {
		t.Fatal(err)
	}
	t.Chdir(claim) // the other user cannot reach it by its path
	for _, step := range []struct {
		user   int
		script string
		fails  bool
	}{
		{root, "test $(umask) = 0002; mkdir -p run/logs; echo root > run/logs/rank-0.log; (umask 077; echo token > token)", false},
		{random, "echo random >> run/logs/rank-0.log; echo random > run/logs/rank-1.log; mkdir run/out; rm -r run/logs", false},
		{random, "cat token", random != root},
		{root, "echo root > run/out/model; chmod -R g+rwX .", false},
		{random, "cat token; echo random >> run/out/model; rm -r run", false},
	} {
		command := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestUsersOfAClaim$")
		command.Env = append(os.Environ(), variable+"="+step.script)
		if os.Getuid() == 0 {
			credential := &syscall.Credential{Uid: uint32(step.user)}
			if step.user == random {
				credential.Groups = []uint32{uint32(group)}
			}
			command.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		}
		if out, err := command.CombinedOutput(); (err != nil) != step.fails {
			t.Fatalf("user %d: %s: %v, want failure %t: %s", step.user, step.script, err, step.fails, out)
		}
	}
}
