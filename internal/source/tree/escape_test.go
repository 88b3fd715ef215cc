// SPDX-License-Identifier: Apache-2.0

package tree

import "testing"

func TestEscape(t *testing.T) {
	for name, want := range map[string]string{
		"train.py":        "train.py",
		"a b/c~.txt":      "a b/c~.txt",
		"100%":            "100%25",
		"Grüße":           "Gr%C3%BC%C3%9Fe",
		"new\nline\x7f":   "new%0Aline%7F",
		"\xff\x00\\":      "%FF%00\\",
		"%41":             "%2541",
		"日本/\t.py":        "%E6%97%A5%E6%9C%AC/%09.py",
		"":                "",
		"-rf --no\"quote": "-rf --no\"quote",
	} {
		got := Escape(name)
		if got != want {
			t.Errorf("Escape(%q) = %q, want %q", name, got, want)
		}
		if back, err := Unescape(got); err != nil || back != name {
			t.Errorf("Unescape(%q) = %q, %v, want %q", got, back, err, name)
		}
	}
}

func TestUnescapeRefuses(t *testing.T) {
	for _, escaped := range []string{"%", "a%4", "%zz", "%41", "%c3%bc", "ü", "tab\t", "\x00", "%2f"} {
		if got, err := Unescape(escaped); err == nil {
			t.Errorf("Unescape(%q) = %q, want an error", escaped, got)
		}
	}
}
