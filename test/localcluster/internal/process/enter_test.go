// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMemlockIsInherited tests that the children of a component have its limit. It runs itself as a child, because a
// process cannot raise a lowered limit again.
func TestMemlockIsInherited(t *testing.T) {
	const child = "MEMLOCK_CHILD"
	if os.Getenv(child) != "" {
		if err := limitMemlock(32 << 10); err != nil {
			t.Fatal(err)
		}
		t.Fatal(unix.Exec("/bin/sh", []string{"sh", "-c", "ulimit -l; ulimit -Hl"}, os.Environ()))
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestMemlockIsInherited$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if got := strings.Fields(string(out)); err != nil || len(got) != 2 || got[0] != "32" || got[1] != "32" {
		t.Errorf("%v: limits %q, want 32 KiB", err, out)
	}
}
