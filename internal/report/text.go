package report

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// What is shown of lists and texts, so that a large receipt stays a page.
const (
	mostNodes    = 64
	mostRanks    = 1024
	mostTails    = 8
	mostLines    = 60
	mostLine     = 500
	mostPhases   = 40
	mostFindings = 20
	mostRails    = 64
	mostSettings = 100
	mostText     = 4000
)

// first are at most so many of a list, with a sentence about the others.
func first[T any](list []T, most int, what string) (kept []T, more string) {
	if len(list) <= most {
		return list, ""
	}
	return list[:most], fmt.Sprintf("%d more %s are in the receipt.", len(list)-most, what)
}

// clean is text as people can read it: without the control characters that colour a
// terminal, without those that turn the direction of text, and of a bounded length.
func clean(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, escapes.ReplaceAllString(strings.ToValidUTF8(text, "\uFFFD"), ""))
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// lines are the last ones, each cleaned.
func lines(all []string) string {
	var b strings.Builder
	if left := len(all) - mostLines; left > 0 {
		fmt.Fprintf(&b, "(%d lines before)\n", left)
		all = all[left:]
	}
	for _, line := range all {
		b.WriteString(clean(line, mostLine) + "\n")
	}
	return b.String()
}

// escapes are those that a terminal obeys, as "\x1b[31m".
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]`)
