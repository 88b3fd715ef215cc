// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"regexp"
	"strings"
)

var (
	comment = regexp.MustCompile(`(^|\s)#.*$`)
	perLine = regexp.MustCompile(`\s--(hash|config-settings|global-option|install-option)\b.*$`)
	// editable is an option with the path or URL of a package, findLinks one with a folder or page of packages.
	editable  = regexp.MustCompile(`^(?:-e|--editable)(?:[ \t=]+|$)`)
	findLinks = regexp.MustCompile(`^(?:-f|--find-links)(?:[ \t=]+|$)`)
	// named is the name before the URL of a package, marker what follows a requirement, and remote the scheme of a URL elsewhere.
	named  = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*`)
	marker = regexp.MustCompile(`\s*;.*$`)
	remote = regexp.MustCompile(`^[A-Za-z][\w+.-]*://`)
	ofFile = regexp.MustCompile(`^(?:[a-z]+\+)?file:`)
	// archive ends the name of a file that pip installs.
	archive = regexp.MustCompile(`\.(?:whl|zip|tar|tgz|tbz|txz|tlz|tar\.(?:gz|bz2|xz|lz|lzma))(?:\[[^\]]*\])?$`)
)

// namesLocalPackages reports whether a requirements file names something on the machine that installs it, as "-e .", "./package", a wheel
// in the repository, or a folder of wheels: then its lines alone do not say what is installed.
func namesLocalPackages(content string) bool {
	for line := range strings.Lines(strings.ReplaceAll(strings.ReplaceAll(content, "\r\n", "\n"), "\\\n", "")) {
		line = strings.TrimSpace(comment.ReplaceAllString(strings.TrimSuffix(line, "\n"), ""))
		line = perLine.ReplaceAllString(marker.ReplaceAllString(line, ""), "")
		path := editable.MatchString(line) || findLinks.MatchString(line)
		if path {
			line = findLinks.ReplaceAllString(editable.ReplaceAllString(line, ""), "")
		}
		line = strings.Trim(named.ReplaceAllString(line, ""), `"'`)
		switch {
		case ofFile.MatchString(line):
			return true
		case line == "" || strings.HasPrefix(line, "-") || remote.MatchString(line):
		case path || strings.HasPrefix(line, ".") || strings.ContainsAny(line, `/\`) || archive.MatchString(line):
			return true
		}
	}
	return false
}
