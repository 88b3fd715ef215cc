// SPDX-License-Identifier: Apache-2.0

package git

import (
	"cmp"
	"net"
	"net/url"
	"path"
	"strings"
	"unicode"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// FolderScheme begins what replaces the URL if the user who starts a run sends a folder.
const FolderScheme = "folder:"

// IsFolder reports whether the URL stands for a folder.
func IsFolder(url string) bool { return strings.HasPrefix(url, FolderScheme) }

type address struct {
	// scheme is https, http or ssh.
	scheme string
	// host has no brackets; port is empty for the scheme's own.
	host, port string
	// path begins with a slash, except for ssh if it is relative to the user's home.
	path           string
	user, password string
}

// String shows the address without the user.
func (a address) String() string {
	return a.scheme + "://" + a.url().Host + "/" + strings.TrimPrefix(a.path, "/")
}

// WithoutUser returns a repository's URL without the user, "" if it is invalid.
func WithoutUser(url string) string {
	a, err := parseAddress(url)
	if err != nil {
		return ""
	}
	return a.String()
}

// url returns the address for HTTP, without the user.
func (a address) url() *url.URL {
	host := a.host
	if a.port != "" {
		host = net.JoinHostPort(a.host, a.port)
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return &url.URL{Scheme: a.scheme, Host: host, Path: a.path}
}

// forGit returns the address as git reads it, with the user for ssh only.
func (a address) forGit() string {
	if a.scheme != "ssh" {
		return a.url().String()
	}
	user := cmp.Or(a.user, "git")
	if !strings.HasPrefix(a.path, "/") && !strings.HasPrefix(a.path, "~") || strings.HasPrefix(a.path, "/~") {
		// Relative to the user's home, or not although it begins with a tilde, which a URL cannot express.
		return user + "@" + address{host: a.host}.url().Host + ":" + a.path
	}
	u := a.url()
	u.User, u.Path = url.User(user), "/"+strings.TrimPrefix(a.path, "/")
	return u.String()
}

func (a address) hostPort() string { return net.JoinHostPort(a.host, portOf("ssh", a.port)) }

// CheckURL checks a repository's URL. Errors: InvalidInput.
func CheckURL(url string) error {
	_, err := parseAddress(url)
	return err
}

// parseAddress reads a repository's URL. Its errors do not show user info.
func parseAddress(text string) (address, error) {
	parse := parseScp
	if strings.Contains(text, "://") {
		parse = parseURL
	}
	a, problem := parse(text)
	switch {
	case strings.ContainsFunc(text, unicode.IsControl):
		problem = "it has control characters"
	case problem != "":
	case a.host == "" || a.path == "/":
		problem = "it has no host or no path"
	case strings.ContainsFunc(a.user+a.host+a.path, unicode.IsControl):
		problem = "it has escaped control characters"
	case !validHost(a.host):
		problem = "its host has other characters than letters, digits, dots and hyphens, and is not an IP address"
	default:
		return a, nil
	}
	return address{}, fail.Becausef(fail.InvalidInput,
		"reading repository URL %q: %s: want https://HOST/PATH, http://HOST/PATH, ssh://HOST/PATH or USER@HOST:PATH", withoutUser(text), problem)
}

func parseURL(text string) (a address, problem string) {
	u, err := url.Parse(text)
	if err != nil {
		return a, "it is no URL"
	}
	a = address{scheme: u.Scheme, host: strings.ToLower(u.Hostname()), port: u.Port(), path: path.Clean("/" + u.Path)}
	if u.User != nil {
		a.user = u.User.Username()
		a.password, _ = u.User.Password()
	}
	switch {
	case u.Scheme == "git+ssh" || u.Scheme == "ssh+git":
		a.scheme = "ssh"
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh":
		return a, "its scheme is " + u.Scheme
	case u.RawQuery != "" || u.Fragment != "":
		return a, "it has a query or a fragment"
	}
	if a.scheme == "ssh" && strings.HasPrefix(a.path, "/~") {
		a.path = a.path[1:]
	}
	return a, ""
}

func validHost(host string) bool {
	return net.ParseIP(host) != nil || !strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(".-_", r)
	})
}

func parseScp(text string) (a address, problem string) {
	head, rest, ok := strings.Cut(text, ":")
	switch {
	case !ok || strings.Contains(head, "/"):
		return a, "it is a path on this machine"
	case !strings.Contains(head, "@") && strings.Contains(rest, "@"):
		return a, "it has a user after the host, or no scheme"
	case strings.HasPrefix(rest, ":"), strings.HasPrefix(path.Clean(rest), ":"):
		return a, "it names a helper program"
	case rest == "":
		return a, "it has no host or no path"
	case strings.HasPrefix(head, "-"):
		return a, "it begins as an option does"
	}
	user, host := cutUser(head)
	return address{scheme: "ssh", user: user, host: strings.ToLower(host), path: path.Clean(rest)}, ""
}

func cutUser(text string) (user, host string) {
	at := strings.LastIndex(text, "@")
	return text[:max(0, at)], text[at+1:]
}

func withoutUser(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return text[strings.LastIndex(text, "@")+1:]
	}
	if query := strings.Index(rest, "?"); query >= 0 {
		if at := strings.LastIndex(rest, "@"); at > query { // a question mark in an unescaped password
			rest = rest[at:]
		} else {
			rest = rest[:query]
		}
	}
	host, tail, slash := strings.Cut(rest, "/")
	if !strings.Contains(host, "@") && strings.Contains(tail, "@") {
		// A slash in an unescaped password.
		host, slash = rest[strings.LastIndex(rest, "@"):], false
	}
	shown := scheme + "://" + host[strings.LastIndex(host, "@")+1:]
	if slash {
		shown += "/" + tail
	}
	return shown
}

// submodule returns the address for a URL in .gitmodules; one that begins with ./ or ../ is relative to this
// repository's.
func (a address) submodule(text string) (address, error) {
	if !strings.HasPrefix(text, "./") && !strings.HasPrefix(text, "../") {
		return parseAddress(text)
	}
	up := a
	up.path = path.Join(a.path, text)
	// Joining to a path that begins with a slash silently stops there.
	relative := path.Join(strings.TrimPrefix(a.path, "/"), text)
	if relative == "." || relative == ".." || strings.HasPrefix(relative, "../") {
		return address{}, fail.Becausef(fail.InvalidInput, "resolving submodule URL %q against %s: it leaves the host", text, a)
	}
	return up, nil
}
