// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"slices"
	"testing"
)

func TestRankAllowsItsTracer(t *testing.T) {
	command := []string{"sh", "-c", "exit 0"}
	for scope, want := range map[string]bool{"": false, "0\n": false, "1\n": true, "2\n": false, "3\n": false} {
		got := traceable(command, []byte(scope))
		if wrapped := len(got) == len(command)+3 && got[1] == "traced" && slices.Equal(got[3:], command); wrapped != want ||
			!want && !slices.Equal(got, command) {
			t.Errorf("scope %q: %q, through this program %t", scope, got, want)
		}
	}
	if missing := []string{"/nowhere/python3"}; !slices.Equal(traceable(missing, []byte("1")), missing) {
		t.Error("a program that does not exist is started through this one, which would hide why it fails")
	}
}
