// SPDX-License-Identifier: Apache-2.0

package server

import "testing"

// TestEntered: a shell of oc rsh has no parent in the container; the question whether the node is ready has none either.
func TestEntered(t *testing.T) {
	agent := process{pid: 1}
	for _, tc := range []struct {
		name string
		all  []process
		want bool
	}{
		{"the agent alone", []process{agent, {pid: 7, parent: 1}}, false},
		{"a shell", []process{agent, {pid: 9}}, true},
		{"the kubelet asks", []process{agent, {pid: 100}}, false},
		{"a shell that has ended", []process{agent, {pid: 9, dead: true}}, false},
	} {
		if got := entered(tc.all, 1, func(pid int) bool { return pid == 100 }); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
