// SPDX-License-Identifier: Apache-2.0

// Package known has what other programs print and what it means, as rows of data: a case that is met is a row, with an example.
package known

import (
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Whose is what a text shows to be at fault: one of these, the rank that printed it, the fabric, the image, or the cluster.
type Whose string

const (
	// Peer is another rank, which this one lost or waits for.
	Peer Whose = "peer"
	// Node is the Kubernetes node: evidence enough to leave it out.
	Node Whose = "node"
	// Request is what the user asks for.
	Request Whose = "request"
)

// Row is a text that another program prints, and what it means.
type Row struct {
	// ID names the row.
	ID string `json:"id"`
	// Of are the kinds of messages, if the table has several.
	Of string `json:"of,omitempty"`
	// Patterns are regular expressions, alternatives. The first one that has groups gives them to Names, Means and Next as $1 and so on.
	Patterns []string `json:"patterns"`
	Whose    Whose    `json:"whose"`
	// Waits: the rank waited for another one.
	Waits bool `json:"waits,omitempty"`
	// Reason replaces the general one. Probable: the text has other causes too, so nothing is decided by the reason.
	Reason   fail.Reason `json:"reason,omitempty"`
	Probable bool        `json:"probable,omitempty"`
	// Names are the ranks, as in "1, 3", that the text names as those at fault, or as those that it waited for.
	Names string `json:"names,omitempty"`
	// Means is a clause that is added to the text, if the text does not say it.
	Means string `json:"means,omitempty"`
	// Next is the advice, and NextHere the one on the user's own machine if it differs.
	Next     string `json:"next,omitempty"`
	NextHere string `json:"nextHere,omitempty"`
	// Final: it does not get better by itself.
	Final bool `json:"final,omitempty"`
	// Echo: an earlier message about the same object has the cause.
	Echo bool `json:"echo,omitempty"`
	// From is where the text comes from: a source file, versions, a public report.
	From string `json:"from,omitempty"`
	// Examples are texts for which the row is the first one that fits.
	Examples []string `json:"examples"`

	pattern *regexp.Regexp
}

// Table has the rows of one source. What is specific stands before what is general.
type Table []Row

//go:embed *.yaml
var files embed.FS

// Words returns the rows about what a rank prints: its error, or its last lines.
var Words = sync.OnceValue(func() Table { return read("words.yaml") })

// Pods returns the rows about messages about pods: events and states of containers.
var Pods = sync.OnceValue(func() Table { return read("pods.yaml") })

// Builds returns the rows about what programs print while an image is built or packages are installed.
var Builds = sync.OnceValue(func() Table { return read("builds.yaml") })

func read(name string) (table Table) {
	content, err := files.ReadFile(name)
	if err == nil {
		err = yaml.UnmarshalStrict(content, &table)
	}
	if err != nil {
		panic(fmt.Sprintf("reading the embedded table %s: %v", name, err))
	}
	for i := range table {
		table[i].pattern = regexp.MustCompile(strings.Join(table[i].Patterns, "|"))
	}
	return table
}

// Find returns the first row that fits a text, with the text's own words in Means and Next. ok is false if none does.
func (t Table) Find(text string) (row Row, ok bool) { return t.FindOf("", text) }

// FindOf is Find among the rows of a kind of message.
func (t Table) FindOf(kind, text string) (row Row, ok bool) {
	for _, row := range t {
		if kind != "" && !slices.Contains(strings.Fields(row.Of), kind) {
			continue
		}
		if row.fill(text) {
			return row, true
		}
	}
	return Row{}, false
}

// fill gives a row the words of a text. It reports whether the row fits.
func (r *Row) fill(text string) bool {
	match := r.pattern.FindStringSubmatch(text)
	if match == nil {
		return false
	}
	groups := slices.DeleteFunc(slices.Clone(match[1:]), func(group string) bool { return group == "" })
	for i, group := range groups {
		for _, words := range []*string{&r.Names, &r.Means, &r.Next, &r.NextHere} {
			*words = strings.ReplaceAll(*words, fmt.Sprintf("$%d", i+1), group)
		}
	}
	return true
}

// Matches reports whether the row fits a text.
func (r Row) Matches(text string) bool { return r.pattern.MatchString(text) }

// Names returns the ranks that a text names, and whether it waited for them. A row before may have its reason.
func (t Table) Names(text string) (ranks string, waits bool) {
	for _, row := range t {
		if row.Names != "" && row.fill(text) {
			return row.Names, row.Waits
		}
	}
	return "", false
}

// ShowsWaiting reports whether a text shows that a rank waited for another one.
func (t Table) ShowsWaiting(text string) bool {
	return slices.ContainsFunc(t, func(row Row) bool { return row.Waits && row.pattern.MatchString(text) })
}
