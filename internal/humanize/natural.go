// SPDX-License-Identifier: Apache-2.0

package humanize

import (
	"strconv"
	"strings"
)

// Natural compares names whose ends are numbers by these: h-kim-2 comes before h-kim-10.
func Natural(a, b string) int {
	digits := func(s string) (string, int) {
		stem := strings.TrimRight(s, "0123456789")
		n, _ := strconv.Atoi(s[len(stem):])
		return stem, n
	}
	stemA, numberA := digits(a)
	stemB, numberB := digits(b)
	if stemA == stemB && numberA != numberB {
		return numberA - numberB
	}
	return strings.Compare(a, b)
}
