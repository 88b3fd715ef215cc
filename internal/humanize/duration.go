// SPDX-License-Identifier: Apache-2.0

package humanize

import (
	"fmt"
	"time"
)

// Duration formats a time to two places: 3.2 s, 4m12s, 25h2m, 3d4h.
func Duration(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	const day = 24 * time.Hour // a unit
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// Seconds is Duration for a number of seconds, as JSON has it.
func Seconds(s float64) string { return Duration(time.Duration(s * float64(time.Second))) }
