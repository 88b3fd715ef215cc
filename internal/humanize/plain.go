// SPDX-License-Identifier: Apache-2.0

package humanize

import (
	"regexp"
	"strings"
	"unicode"
)

// Plain returns a text without the control characters that steer a terminal, such as those for colors, and those that change the
// direction of text. Bytes that are no UTF-8 are replaced: on a terminal of eight bits, 0x9b begins an escape sequence. Texts of
// a training, or of an object that others may write, are printed in this way.
func Plain(text string) string {
	if printable(text) {
		return text
	}
	text = strings.ToValidUTF8(text, "\ufffd")
	if strings.IndexFunc(text, steers) < 0 {
		return text
	}
	return strings.Map(func(r rune) rune {
		if steers(r) {
			return -1
		}
		return r
	}, escapes.ReplaceAllString(text, ""))
}

// printable recognizes printable ASCII, which most lines of a training are, in a fraction of the time that steers takes.
func printable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= '\x7f' {
			return false
		}
	}
	return true
}

// PlainLine is Plain for a line of a log. If a program rewrote the line, as progress bars do, it returns the last state.
func PlainLine(line string) string {
	line = strings.TrimRight(line, "\r\n")
	return Plain(line[strings.LastIndexByte(line, '\r')+1:])
}

func steers(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}

// escapes are escape sequences of terminals: "\x1b[31m", and "\x1b]0;TITLE\x07". Each introducer also has a form of one character.
var escapes = regexp.MustCompile(`(\x1b\[|\x{9b})[0-9;?]*[ -/]*[@-~]|(\x1b\]|\x{9d})[^\x07\x1b\x{9c}]*(\x07|\x1b\\|\x{9c})`)
