// SPDX-License-Identifier: Apache-2.0

package humanize

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"nodes", "lfs", "launcher", "timeout"}
	for word, want := range map[string]string{"nods": "nodes", "Ndoes": "nodes", "launcer": "launcher", "lr": "", "epochs": "", "": ""} {
		if got := Nearest(word, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
