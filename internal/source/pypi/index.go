// SPDX-License-Identifier: Apache-2.0

// Package pypi asks package indexes whether they have what requirements files name. It resolves nothing: two packages that exclude each
// other pass.
package pypi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// DefaultIndex is pip's own.
const DefaultIndex = "https://pypi.org/simple"

const (
	// accepted are the formats of PEP 691, and the one before it.
	accepted = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
	jsonType = "application/vnd.pypi.simple.v1+json"
	// maxPage bounds an index's answer about a package, in bytes: few answer with more than 4 MB.
	maxPage = 12 << 20
	// atOnce is how many packages are asked for at once, of at most mostAsked.
	atOnce    = 4
	mostAsked = 300
)

// Problem is a requirement that no index satisfies.
type Problem struct {
	Requirement Requirement
	// Seen is what the indexes have instead.
	Seen string
	// NoName is true if no index has a package of that name.
	NoName bool
}

// Answer is what indexes answer about requirements.
type Answer struct {
	Problems []Problem
	// Found is how many requirements can be satisfied, and Unknown how many have no answer; Why is the first cause of that.
	Found, Unknown int
	Why            error
}

// Ask looks the requirements up, several at once, until ctx ends. What has no answer is unknown.
func Ask(ctx context.Context, client *http.Client, settings Settings, all []Requirement) Answer {
	indexes := slices.Concat([]string{settings.Index}, settings.Extra)
	if settings.Index == "" {
		indexes[0] = DefaultIndex
	}
	var (
		mu     sync.Mutex
		answer Answer
		group  sync.WaitGroup
	)
	if more := len(all) - mostAsked; more > 0 {
		answer.Unknown, answer.Why = more, fmt.Errorf("want at most %d requirements", mostAsked)
	}
	turns := make(chan struct{}, atOnce)
	for _, r := range all[:min(len(all), mostAsked)] {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			problem, err := lookUp(ctx, client, indexes, r)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				answer.Unknown++
				if answer.Why == nil {
					answer.Why = err
				}
			case problem != nil:
				answer.Problems = append(answer.Problems, *problem)
			default:
				answer.Found++
			}
		})
	}
	group.Wait()
	order := func(p Problem) int {
		return slices.IndexFunc(all, func(r Requirement) bool { return r.Text == p.Requirement.Text })
	}
	slices.SortStableFunc(answer.Problems, func(a, b Problem) int { return order(a) - order(b) })
	return answer
}

var errNotFound = errors.New("the index has no such package")

// lookUp returns the problem of a requirement, nil if an index satisfies it. It is an error if an index that might has no answer.
func lookUp(ctx context.Context, client *http.Client, indexes []string, r Requirement) (*Problem, error) {
	var versions []string
	var unanswered error
	known := false
	for _, index := range indexes {
		found, err := versionsOf(ctx, client, index, r.Name)
		switch {
		case errors.Is(err, errNotFound):
			continue
		case err != nil:
			unanswered = err
			continue
		}
		known = true
		if slices.ContainsFunc(found, r.satisfiedBy) {
			return nil, nil //nolint:nilnil // no problem, and no error
		}
		versions = append(versions, found...)
	}
	where := humanize.List(humanize.Each(indexes, Shown), "and")
	switch {
	case unanswered != nil:
		return nil, unanswered
	case !known:
		return &Problem{Requirement: r, NoName: true, Seen: "no package of that name at " + where}, nil
	}
	return &Problem{Requirement: r, Seen: fmt.Sprintf("%s has no such version; the newest are %s", where, newest(versions))}, nil
}

// newest names the last few versions.
func newest(versions []string) string {
	const most = 3
	known := slices.DeleteFunc(slices.Clone(versions), func(text string) bool { _, ok := parseVersion(text); return !ok })
	slices.SortFunc(known, func(a, b string) int {
		first, _ := parseVersion(a)
		second, _ := parseVersion(b)
		return second.compare(first)
	})
	known = slices.Compact(known)
	if len(known) == 0 {
		return "unknown"
	}
	return strings.Join(known[:min(len(known), most)], ", ")
}

// versionsOf returns all versions that the index has of a package, errNotFound without the package.
func versionsOf(ctx context.Context, client *http.Client, index, name string) ([]string, error) {
	page, err := url.JoinPath(index, name, "/")
	if err != nil {
		return nil, fmt.Errorf("%s is no URL", Shown(index))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return nil, fmt.Errorf("%s is no URL", Shown(index))
	}
	request.Header.Set("Accept", accepted)
	response, err := client.Do(request)
	if err != nil {
		if cause := (*url.Error)(nil); errors.As(err, &cause) {
			err = cause.Err // its URL may have a password
		}
		return nil, fmt.Errorf("%s: %w", Shown(index), err)
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotFound:
		return nil, errNotFound
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s", Shown(index), response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxPage+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", Shown(index), err)
	case len(body) > maxPage:
		return nil, fmt.Errorf("%s answers about %s with more than %s", Shown(index), name, humanize.Bytes(maxPage))
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind == jsonType {
		return fromJSON(name, body)
	}
	return fromHTML(name, body)
}

func fromJSON(name string, body []byte) ([]string, error) {
	var page struct {
		Versions []string `json:"versions"`
		Files    []struct {
			Filename string `json:"filename"`
		} `json:"files"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, fmt.Errorf("the index answers about %s with what is no JSON: %w", name, err)
	}
	versions := page.Versions
	for _, file := range page.Files { // an index of an earlier version lists no versions
		if version := versionOf(name, file.Filename); version != "" {
			versions = append(versions, version)
		}
	}
	return versions, nil
}

var anchor = regexp.MustCompile(`(?is)<a\b[^>]*>(.*?)</a>`)

func fromHTML(name string, body []byte) (versions []string, err error) {
	for _, found := range anchor.FindAllSubmatch(body, -1) {
		if version := versionOf(name, strings.TrimSpace(html.UnescapeString(string(found[1])))); version != "" {
			versions = append(versions, version)
		}
	}
	if len(versions) == 0 {
		// A page of a login or a proxy, perhaps.
		return nil, fmt.Errorf("the index answers about %s without any file", name)
	}
	return versions, nil
}

// versionOf returns the version in the name of a wheel or of a source distribution, "" for none.
func versionOf(name, file string) string {
	if stem, ok := strings.CutSuffix(file, ".whl"); ok {
		if parts := strings.Split(stem, "-"); len(parts) >= 5 {
			return parts[1]
		}
		return ""
	}
	for _, suffix := range []string{".tar.gz", ".zip", ".tar.bz2", ".tgz"} {
		stem, ok := strings.CutSuffix(file, suffix)
		for i, letter := range stem {
			if ok && letter == '-' && normalize(stem[:i]) == name {
				return stem[i+1:]
			}
		}
	}
	return ""
}
