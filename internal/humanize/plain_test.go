// SPDX-License-Identifier: Apache-2.0

package humanize

import "testing"

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"plain ✓ text\twith\nlines":          "plain ✓ text\twith\nlines",
		"\x1b[1;31mred\x1b[0m\r\x07":         "red",
		"\u202eexe.gnp\u2069":                "exe.gnp",
		"a\x1b]0;title\x07b\x1b]8;;x\x1b\\c": "abc",
		"one character of C1: \u009b2J":      "one character of C1: ",
		"a\u009d0;title\u009cb":              "ab",
		"one byte of C1: \x9b2J":             "one byte of C1: \ufffd2J",
		"a cut off ✓: \xe2\x9c":              "a cut off ✓: \ufffd",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestPlainLine(t *testing.T) {
	for line, want := range map[string]string{
		"a line\r\n":                     "a line",
		"10%\r20%\r\x1b[32m30%\x1b[0m\r": "30%",
		"":                               "",
	} {
		if got := PlainLine(line); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

func TestLines(t *testing.T) {
	for _, tc := range []struct {
		text string
		most int
		want string
	}{
		{"\n training failed:\n  File \"t.py\"\x1b[0m \r\n\n", 100, "training failed:\n  File \"t.py\""},
		{"äöü", 3, "ä..."},
	} {
		if got := Lines(tc.text, tc.most); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.text, got, tc.want)
		}
	}
}
