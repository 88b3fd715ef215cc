// SPDX-License-Identifier: Apache-2.0

package humanize

import (
	"strings"

	"github.com/agext/levenshtein"
)

// Nearest returns the name that was probably meant by a word, "" for none.
func Nearest(word string, names []string) string {
	best, least := "", 3 // more than two letters, or half of the word, off is another word
	for _, name := range names {
		if d := levenshtein.Distance(strings.ToLower(word), strings.ToLower(name), nil); d < least && 2*d <= len(word) {
			best, least = name, d
		}
	}
	return best
}
