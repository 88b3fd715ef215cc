// Package humanize formats numbers, sizes and times for people, and finds similar words.
package humanize

import (
	"strconv"
	"strings"
)

// Count is "1 node", "2 nodes" or "0 nodes". The plural of the word must end in s.
func Count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// List is "a, b and c" with the conjunction and.
func List(words []string, conjunction string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
