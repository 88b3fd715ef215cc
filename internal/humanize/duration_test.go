// SPDX-License-Identifier: Apache-2.0

package humanize

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                   "0.0 s",
		3200 * time.Millisecond:        "3.2 s",
		4*time.Minute + 12*time.Second: "4m12s",
		25*time.Hour + 2*time.Minute:   "25h2m",
		76 * time.Hour:                 "3d4h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
}
