package humanize

import (
	"strings"
	"unicode/utf8"
)

// OneLine is text on one line, cut to most bytes.
func OneLine(text string, most int) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) <= most {
		return text
	}
	for !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "..."
}
