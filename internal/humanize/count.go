// SPDX-License-Identifier: Apache-2.0

// Package humanize formats numbers, sizes and times as text, and finds similar words.
package humanize

import (
	"strconv"
	"strings"
)

// Count returns "1 node", "2 nodes" or "0 nodes". The plural of the word must end in s.
func Count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// Each returns the text of every element of a list.
func Each[T any](list []T, text func(T) string) []string {
	texts := make([]string, len(list))
	for i, element := range list {
		texts[i] = text(element)
	}
	return texts
}

// List returns "a, b and c" with the conjunction and.
func List(words []string, conjunction string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}

// First returns "a, b and 3 more": that many, and the number of the others.
func First(names []string, most int) string {
	if len(names) > most {
		return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(len(names)-most) + " more"
	}
	return strings.Join(names, ", ")
}

// FirstAnd is First, or List if there are no others.
func FirstAnd(names []string, most int) string {
	if len(names) > most {
		return First(names, most)
	}
	return List(names, "and")
}

// Nodes returns "node 2", "nodes 1 and 4", or "no node".
func Nodes(nodes []int) string {
	numbers := Each(nodes, strconv.Itoa)
	switch len(numbers) {
	case 0:
		return "no node"
	case 1:
		return "node " + numbers[0]
	}
	return "nodes " + List(numbers, "and")
}
