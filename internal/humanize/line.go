// SPDX-License-Identifier: Apache-2.0

package humanize

import (
	"strings"
	"unicode/utf8"
)

// OneLine returns plain text on one line, cut to most bytes.
func OneLine(text string, most int) string {
	return cut(Plain(strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")), most)
}

// Lines returns plain text that keeps its lines, cut to most bytes.
func Lines(text string, most int) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(text, "?")), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(PlainLine(line), " \t")
	}
	return cut(strings.Join(lines, "\n"), most)
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "..."
}
