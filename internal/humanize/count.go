// Package humanize is about how things are said to people: numbers, sizes, near misses.
package humanize

import "strconv"

// Count is "1 node", "2 nodes" or "0 nodes" for what is one "node". Words whose
// plural is not made by an s are not for it.
func Count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}
