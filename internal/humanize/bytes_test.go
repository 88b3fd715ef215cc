// SPDX-License-Identifier: Apache-2.0

package humanize

import "testing"

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 14_349: "14.3 kB", 999_940: "999.9 kB", 999_960: "1.0 MB",
		21_900_000: "21.9 MB", 2e9: "2.0 GB", 5e15: "5000.0 TB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}
