package git

import (
	"fmt"
	"strings"
	"unicode"
)

// Limits of Linux, in bytes.
const (
	maxName = 255
	maxPath = 4095
)

// badName says what is wrong with a tree entry's name, "" if nothing is.
func badName(name string) string {
	switch {
	case name == "":
		return "an empty name"
	case name == "." || name == ".." || strings.Contains(name, "/"):
		return "a name that leads elsewhere"
	case len(name) > maxName:
		return fmt.Sprintf("a name of %d bytes: want at most %d", len(name), maxName)
	case likeDotGit(name):
		return "a name that git itself refuses"
	}
	return ""
}

// likeDotGit says whether a name is .git, or would be on a filesystem that
// folds case, drops invisible letters or trailing dots, or has streams and
// short names.
func likeDotGit(name string) bool {
	name = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, name)
	name, _, _ = strings.Cut(name, ":")
	name, _, _ = strings.Cut(name, `\`)
	name = strings.ToLower(strings.TrimRight(name, " ."))
	return name == ".git" || name == "git~1"
}
