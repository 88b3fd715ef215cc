// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"regexp"
	"testing"
)

// plainer maps words that pages avoid to the words that replace them.
var plainer = []struct {
	words   *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\b(say|says|said|tell|tells|told)\b`), "report, print, return, explain, or the fact itself"},
	{regexp.MustCompile(`(?i)\b(somebody|someone|nobody|anybody|everybody|whoever|people)\b`), "users, anyone who, another run or user"},
	{regexp.MustCompile(`(?i)\bbeside\b`), "in addition to, next to, compared with"},
	{regexp.MustCompile(`(?i)\b(go|goes|going) on\b`), "continue"},
	{regexp.MustCompile(`(?i)\b(gives?|gave|given|giving)( \w+){0,4} back\b`), "release, delete"},
	{regexp.MustCompile(`(?i)\b(for but|but for|nothing but|none but|is not there|are not there|whence)\b`), "except, only, missing"},
}

// TestPlainEnglish looks for the words in the prose of all pages.
func TestPlainEnglish(t *testing.T) {
	eachPage(t, func(path, text string) {
		prose := withoutCode(text)
		for _, p := range plainer {
			if found := p.words.FindString(prose); found != "" {
				t.Errorf("%s: %q: write %s", path, found, p.instead)
			}
		}
	})
}
