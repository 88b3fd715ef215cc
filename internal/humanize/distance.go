package humanize

import "strings"

// Nearest is the name that was probably meant by a word, "" for none.
func Nearest(word string, names []string) string {
	best, least := "", 3 // more than two letters, or half of the word, off is another word
	for _, name := range names {
		if d := Distance(strings.ToLower(word), strings.ToLower(name)); d < least && 2*d <= len(word) {
			best, least = name, d
		}
	}
	return best
}

// Distance is Levenshtein's: the least number of letters to insert, delete or
// replace to make one word of the other.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
