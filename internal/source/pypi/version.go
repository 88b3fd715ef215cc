// SPDX-License-Identifier: Apache-2.0

package pypi

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// version is one of PEP 440.
type version struct {
	epoch   int
	release []int
	// pre is the phase of a pre-release: a, b or c (which is rc), "" for none.
	pre string
	// preNumber, post and dev are numbers; post and dev are -1 for none.
	preNumber, post, dev int
	local                string
}

var versionPattern = regexp.MustCompile(`^v?(?:(\d+)!)?(\d+(?:\.\d+)*)` +
	`(?:[-_.]?(alpha|a|beta|b|preview|pre|c|rc)[-_.]?(\d*))?` +
	`(?:-(\d+)|[-_.]?(post|rev|r)[-_.]?(\d*))?` +
	`(?:[-_.]?(dev)[-_.]?(\d*))?` +
	`(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?$`)

var phases = map[string]string{"a": "a", "alpha": "a", "b": "b", "beta": "b", "c": "c", "rc": "c", "pre": "c", "preview": "c"}

func parseVersion(text string) (v version, ok bool) {
	found := versionPattern.FindStringSubmatch(strings.ToLower(strings.TrimSpace(text)))
	if found == nil {
		return version{}, false
	}
	v = version{epoch: number(found[1]), pre: phases[found[3]], preNumber: number(found[4]), post: -1, dev: -1, local: found[10]}
	for part := range strings.SplitSeq(found[2], ".") {
		v.release = append(v.release, number(part))
	}
	if found[5] != "" || found[6] != "" {
		v.post = number(cmp.Or(found[5], found[7]))
	}
	if found[8] != "" {
		v.dev = number(found[9])
	}
	return v, true
}

// number returns 0 for "", and the largest one for a number that is too large.
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

// prerelease reports whether pip takes the version only if nothing else fits.
func (v version) prerelease() bool { return v.pre != "" || v.dev >= 0 }

// trimmed returns the release without zeros at its end, which do not count.
func (v version) trimmed() []int {
	release := v.release
	for len(release) > 1 && release[len(release)-1] == 0 {
		release = release[:len(release)-1]
	}
	return release
}

// compare orders versions without their local parts.
func (v version) compare(other version) int {
	const first, last = -1, 1 << 30
	// A development release of the final one comes before its pre-releases.
	phase := func(v version) string {
		switch {
		case v.pre != "":
			return v.pre
		case v.post < 0 && v.dev >= 0:
			return ""
		}
		return "z"
	}
	dev := func(v version) int {
		if v.dev < 0 {
			return last
		}
		return v.dev
	}
	return cmp.Or(cmp.Compare(v.epoch, other.epoch), slices.Compare(v.trimmed(), other.trimmed()), cmp.Compare(phase(v), phase(other)),
		cmp.Compare(v.preNumber, other.preNumber), cmp.Compare(max(v.post, first), max(other.post, first)), cmp.Compare(dev(v), dev(other)))
}

// startsWith reports whether the release begins with the parts of a prefix, as 2.4.1 does with 2.4.
func (v version) startsWith(prefix version) bool {
	if v.epoch != prefix.epoch {
		return false
	}
	for i, part := range prefix.release {
		if i < len(v.release) && v.release[i] != part || i >= len(v.release) && part != 0 {
			return false
		}
	}
	return true
}

// specifier is one condition on a version, such as >=2.4.
type specifier struct {
	operator, text string
	version        version
	// prefix is true for ==2.4.* and !=2.4.*.
	prefix bool
}

var specifierPattern = regexp.MustCompile(`^(===|==|~=|!=|<=|>=|<|>)\s*(\S+)$`)

func parseSpecifier(text string) (s specifier, ok bool) {
	found := specifierPattern.FindStringSubmatch(strings.TrimSpace(text))
	if found == nil {
		return specifier{}, false
	}
	s = specifier{operator: found[1], text: found[2]}
	if s.operator == "===" {
		return s, true
	}
	digits := found[2]
	if s.operator == "==" || s.operator == "!=" {
		digits, s.prefix = strings.CutSuffix(digits, ".*")
	}
	s.version, ok = parseVersion(digits)
	return s, ok && (s.operator != "~=" || len(s.version.release) > 1)
}

// allows reports whether the version text satisfies the condition.
func (s specifier) allows(text string) bool {
	if s.operator == "===" {
		return strings.EqualFold(s.text, text)
	}
	v, ok := parseVersion(text)
	if !ok {
		return false
	}
	equal := v.compare(s.version) == 0 && (s.version.local == "" || s.version.local == v.local)
	if s.prefix {
		equal = v.startsWith(s.version)
	}
	sameRelease := v.epoch == s.version.epoch && slices.Equal(v.trimmed(), s.version.trimmed())
	switch s.operator {
	case "==":
		return equal
	case "!=":
		return !equal
	case "<=":
		return v.compare(s.version) <= 0
	case ">=":
		return v.compare(s.version) >= 0
	case "<": // not the pre-releases of the version itself
		return v.compare(s.version) < 0 && (s.version.prerelease() || !sameRelease || !v.prerelease())
	case ">": // not the post-releases of the version itself
		return v.compare(s.version) > 0 && (s.version.post >= 0 || !sameRelease || v.post < 0)
	}
	series := s.version // ~=2.4.1 is >=2.4.1 and ==2.4.*
	series.release = series.release[:len(series.release)-1]
	return v.compare(s.version) >= 0 && v.startsWith(series)
}
