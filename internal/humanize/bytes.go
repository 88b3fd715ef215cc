// SPDX-License-Identifier: Apache-2.0

package humanize

import "fmt"

// Bytes returns a size in decimal units, as registries, disks and networks are
// counted: 405 B, 14.3 kB, 21.9 MB, 2.0 GB.
func Bytes(n int64) string {
	const units = "kMGT"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1000, 0
	// 999.95 and more would be shown as 1000.0.
	for ; value >= 999.95 && unit < len(units)-1; unit++ {
		value /= 1000
	}
	return fmt.Sprintf("%.1f %cB", value, units[unit])
}
