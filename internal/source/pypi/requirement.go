// SPDX-License-Identifier: Apache-2.0

package pypi

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Requirement is a package that pip would look up in an index, with the conditions on its version.
type Requirement struct {
	// Text is the requirement as it was written, without comments and options.
	Text string
	// Name is the normalized name.
	Name       string
	specifiers []specifier
}

// Settings are what pip looks for packages in.
type Settings struct {
	// Index is the base URL of the index, "" for the default one. Extra are further ones.
	Index string
	Extra []string
	// Elsewhere is true if packages may also come from files, or from nowhere: then no index has the last word.
	Elsewhere bool
}

// Named reports whether anything names an index.
func (s Settings) Named() bool { return s.Index != "" || len(s.Extra) > 0 }

// With adds the settings of another file.
func (s Settings) With(other Settings) Settings {
	if other.Index != "" {
		s.Index = other.Index
	}
	s.Extra = slices.Concat(s.Extra, other.Extra)
	s.Elsewhere = s.Elsewhere || other.Elsewhere
	return s
}

// FromEnvironment adds what pip reads from variables, as in PIP_INDEX_URL=https://..., unless the settings have it already.
func (s Settings) FromEnvironment(env []string) Settings {
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		switch {
		case value == "":
		case name == "PIP_INDEX_URL" && s.Index == "":
			s.Index = value
		case name == "PIP_EXTRA_INDEX_URL" && len(s.Extra) == 0:
			s.Extra = strings.Fields(value)
		case slices.Contains([]string{"PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"}, name):
			s.Elsewhere = true
		}
	}
	return s
}

var (
	comment  = regexp.MustCompile(`(^|\s)#.*$`)
	perLine  = regexp.MustCompile(`\s--(hash|config-settings|global-option|install-option)\b.*$`)
	packages = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(\(?[^()@;/]*\)?)$`)
	runs     = regexp.MustCompile(`[-_.]+`)
)

// normalize returns the name of a package as indexes have it.
func normalize(name string) string { return strings.ToLower(runs.ReplaceAllString(name, "-")) }

// Parse reads a requirements file. includes are the paths of further ones, relative to it. It leaves out what no index decides alone:
// URLs, paths, requirements with a marker, and pins that the training image may satisfy with a build of its own, such as
// torch==2.9.0a0+nv25.10. Lines that it does not understand are pip's to report.
func Parse(content string) (all []Requirement, settings Settings, includes []string) {
	for line := range strings.Lines(strings.ReplaceAll(strings.ReplaceAll(content, "\r\n", "\n"), "\\\n", "")) {
		line = strings.TrimSpace(comment.ReplaceAllString(strings.TrimSuffix(line, "\n"), ""))
		if strings.HasPrefix(line, "-") {
			includes = append(includes, settings.option(line)...)
			continue
		}
		if r, ok := parseRequirement(line); ok {
			all = append(all, r)
		}
	}
	return all, settings, includes
}

var (
	// editable is an option with the path or URL of a package, findLinks one with a folder or page of packages, and otherOption any other.
	editable    = regexp.MustCompile(`^(?:-e|--editable)(?:[ \t=]+|$)`)
	findLinks   = regexp.MustCompile(`^(?:-f|--find-links)(?:[ \t=]+|$)`)
	otherOption = regexp.MustCompile(`^-`)
	// named is the name before the URL of a package, marker what follows a requirement, and remote the scheme of a URL elsewhere.
	named  = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*`)
	marker = regexp.MustCompile(`\s*;.*$`)
	remote = regexp.MustCompile(`^[A-Za-z][\w+.-]*://`)
	ofFile = regexp.MustCompile(`^(?:[a-z]+\+)?file:`)
	// archive ends the name of a file that pip installs.
	archive = regexp.MustCompile(`\.(?:whl|zip|tar|tgz|tbz|txz|tlz|tar\.(?:gz|bz2|xz|lz|lzma))(?:\[[^\]]*\])?$`)
)

// Local reports whether a requirements file names something on the machine that installs it, as "-e .", "./package", a wheel in the
// repository, or a folder of wheels: then its lines alone do not say what is installed.
func Local(content string) bool {
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
		case line == "" || otherOption.MatchString(line) || remote.MatchString(line):
		case path || strings.HasPrefix(line, ".") || strings.ContainsAny(line, `/\`) || archive.MatchString(line):
			return true
		}
	}
	return false
}

// option takes an option on a line of its own, and returns the file that it includes.
func (s *Settings) option(line string) (includes []string) {
	name, value, _ := strings.Cut(line, " ")
	if before, after, assigned := strings.Cut(name, "="); assigned {
		name, value = before, after
	}
	value = strings.TrimSpace(value)
	switch name {
	case "-i", "--index-url", "--pypi-url":
		s.Index = value
	case "--extra-index-url":
		s.Extra = append(s.Extra, value)
	case "-f", "--find-links", "--no-index":
		s.Elsewhere = true
	case "-r", "--requirement":
		includes = append(includes, value)
	}
	if strings.Contains(value, "${") {
		s.Elsewhere = true // a variable of the nodes
	}
	return includes
}

func parseRequirement(line string) (r Requirement, ok bool) {
	line = strings.TrimSpace(perLine.ReplaceAllString(line, ""))
	found := packages.FindStringSubmatch(line)
	if found == nil || strings.Contains(line, "${") {
		return r, false
	}
	r = Requirement{Text: line, Name: normalize(found[1])}
	for text := range strings.SplitSeq(strings.Trim(found[2], "() "), ",") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		s, known := parseSpecifier(text)
		if !known || s.version.local != "" || s.version.prerelease() || s.operator == "===" {
			return r, false
		}
		r.specifiers = append(r.specifiers, s)
	}
	return r, true
}

// satisfiedBy reports whether a version satisfies all conditions.
func (r Requirement) satisfiedBy(version string) bool {
	return !slices.ContainsFunc(r.specifiers, func(s specifier) bool { return !s.allows(version) })
}

// Shown returns the URL of an index without user and password.
func Shown(index string) string {
	parsed, err := url.Parse(index)
	if err != nil {
		return "the index"
	}
	parsed.User = nil
	return parsed.String()
}
