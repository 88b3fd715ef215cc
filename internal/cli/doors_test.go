// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	// doors is the page with the doors to all other pages: lists of links.
	doors    = "README.md"
	concepts = "docs/start/concepts.md"
	// clicks is how far a page may be from the doors.
	clicks = 3
	// numberOfDoors is how many of the last sections are doors.
	numberOfDoors = 3
	// linksOfDoor is how many links a door may have.
	linksOfDoor = 7
)

// sections are the headings of the page with the doors: what it is and when to use something else, what to type, and where to read on.
var sections = []string{"How it compares", "Get mlenv", "Install", "Train", "Operate", "Automate"}

// TestDoors checks that the page with the doors has its sections in their order, that its doors, which are the lists, have few links, each
// to the heading that answers, and that every page is a few clicks away.
func TestDoors(t *testing.T) {
	graph := pageGraph(t)
	distance := distances(graph, doors)
	for _, page := range slices.Sorted(maps.Keys(graph)) {
		switch at, found := distance[page]; {
		case !found:
			t.Errorf("%s: no page within the doors of %s links it", page, doors)
		case at > clicks:
			t.Errorf("%s: %d clicks from %s, want at most %d", page, at, doors, clicks)
		}
	}
	var titles []string
	links := map[string]int{}
	for line := range strings.Lines(read(t, filepath.Join("..", "..", doors))) {
		if title, found := strings.CutPrefix(line, "## "); found {
			titles = append(titles, strings.TrimSpace(title))
		} else if strings.HasPrefix(line, "- ") {
			door := titles[len(titles)-1]
			for _, to := range link.FindAllStringSubmatch(line, -1) {
				links[door]++
				if !strings.Contains(to[1], "#") {
					t.Errorf("%s: %s: link %s: want the heading that answers, not a whole page", doors, door, to[1])
				}
			}
		}
	}
	if !slices.Equal(titles, sections) {
		t.Errorf("%s: sections %q, want %q", doors, titles, sections)
	}
	for _, door := range sections[len(sections)-numberOfDoors:] {
		if n := links[door]; n == 0 || n > linksOfDoor {
			t.Errorf("%s: %s: %d links, want 1 to %d", doors, door, n, linksOfDoor)
		}
	}
	if len(links) != numberOfDoors {
		t.Errorf("%s: %d sections with lists, want %d: %v", doors, len(links), numberOfDoors, links)
	}
}

// TestDistances tests how clicks are counted: the shortest way counts, and a page that only an unreachable page links is not found.
func TestDistances(t *testing.T) {
	graph := map[string][]string{"a": {"b", "c"}, "b": {"d"}, "c": {"d", "a"}, "d": {"e"}, "x": {"y"}}
	want := map[string]int{"a": 0, "b": 1, "c": 1, "d": 2, "e": 3}
	if got := distances(graph, "a"); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// pageGraph returns the pages that each page links, by paths from the root of the repository.
func pageGraph(t *testing.T) map[string][]string {
	t.Helper()
	root := filepath.Join("..", "..")
	graph := map[string][]string{}
	eachPage(t, func(path, text string) {
		page, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		graph[page] = nil
		for _, found := range link.FindAllStringSubmatch(withoutCode(text), -1) {
			to, _, _ := strings.Cut(found[1], "#")
			if to != "" && !strings.Contains(to, "://") {
				graph[page] = append(graph[page], filepath.Join(filepath.Dir(page), to))
			}
		}
	})
	return graph
}

// distances returns the number of clicks from a page to each page that can be reached.
func distances(graph map[string][]string, from string) map[string]int {
	distance, next := map[string]int{from: 0}, []string{from}
	for len(next) > 0 {
		page := next[0]
		next = next[1:]
		for _, to := range graph[page] {
			if _, found := distance[to]; !found {
				distance[to] = distance[page] + 1
				next = append(next, to)
			}
		}
	}
	return distance
}

// quantity is a number that several pages have, in their own words.
type quantity struct {
	what, home string
	// statements match the sentences with the number, which is the group.
	statements []string
}

var quantities = []quantity{
	{what: "time to save", home: "docs/train/saving.md", statements: []string{"`stop-grace` \\(default (\\d+s)", "\\| stop-grace \\| `(\\w+)`",
		"absent for (\\d+s)"}},
	{what: "longest time to save", home: "docs/train/saving.md", statements: []string{"\\(default 30s, at most (\\w+)\\)",
		"save after SIGTERM, up to (\\w+)\\.", "stopped, from 1s to (\\w+), unless"}},
	{what: "training's timeout", home: "pipelines/train-multi-node/README.md",
		statements: []string{"\\| timeout \\| `(\\w+)` \\| How long the training",
			"The training may take (\\w+ minutes)", "after (\\w+ minutes), the default of param `timeout`"}},
	{what: "start-timeout", home: "pipelines/train-multi-node/README.md", statements: []string{"\\| start-timeout \\| `(\\w+)`",
		"instead of the default (\\w+);", "within `start-timeout`, (\\w+ minutes)", "fit into it: (\\w+ minutes) to\\s+start"}},
	{what: "build-timeout", home: "pipelines/train-multi-node/README.md", statements: []string{"\\| build-timeout \\| `(\\w+)`",
		"within `build-timeout`, (\\w+ hour)"}},
	{what: "keep-for of mlenv up", home: "docs/train/develop.md",
		statements: []string{"`--keep-for`, (\\w+ hours)"}},
	{what: "idle-timeout", home: "docs/train/develop.md",
		statements: []string{"`development.idle_timeout` of the cluster file, which is (\\w+ hours)"}},
	{what: "time until the reaper releases", home: "docs/operate/capacity.md", statements: []string{"releases it within (\\w+ minutes)",
		"releases the environment within (\\w+ minutes)", "reaper writes its receipt within (\\w+ minutes)", "does, within (\\w+ minutes)"}},
	{what: "Lease that nobody renews", home: "docs/operate/capacity.md", statements: []string{"renewal it expires after (\\w+ minutes)",
		"or (\\w+ minutes) without `keep-for`", "when the Lease expires, (\\w+ minutes) after"}},
	{what: "silence of an agent that is lost", home: "docs/train/restarts.md", statements: []string{"not answered for (\\w+ minutes) is lost",
		"agent was silent for (\\w+ minutes)"}},
	{what: "hang-timeout auto", home: "docs/reference/reasons.md", statements: []string{"longest of: (\\w+ minutes) of silence"}},
	{what: "silence before the first warning", home: "docs/train/fix.md",
		statements: []string{"warns after (\\w+ minutes) without output",
			"printed anything in the last (\\w+ minutes)"}},
	{what: "wait for the folder of mlenv run", home: "tasks/mlenv-sync-repo/README.md", statements: []string{
		"waits for them for (\\w+ minutes)",
		"nodes have it, for (\\w+ minutes) at most"}},
	{what: "end of the pods", home: "tasks/mlenv-teardown/README.md", statements: []string{"\\| timeout \\| `(\\w+)` \\| How long pods",
		"TeardownIncomplete after (\\w+ minutes)", "and (\\w+ minutes) for the pods to end"}},
	{what: "receipts of an environment", home: "docs/reference/receipt.md",
		statements: []string{"newest (\\w+) receipts", "its last (\\w+) \\[receipts\\]"}},
	{what: "bandwidth that is slow", home: "tasks/mlenv-check-fabric/README.md", statements: []string{"below (\\d+%) of the (?:expected|what)",
		"bandwidth is below (\\d+%) of", "below (\\d+%) is slow"}},
	{what: "disk of a fetch", home: "tasks/mlenv-sync-repo/README.md",
		statements: []string{"stops at (\\d+ GiB) of disk"}},
	{what: "memory of git", home: "tasks/mlenv-sync-repo/README.md", statements: []string{"needs more than (\\d+ MiB) of memory"}},
	{what: "version of Go", home: "CONTRIBUTING.md", statements: []string{"\\bGo (1\\.\\d+)"}},
}

// TestNumbersHaveOneValue checks that numbers which stand on several pages are the same on all of them, and that their home has them.
func TestNumbersHaveOneValue(t *testing.T) {
	pages := map[string]string{}
	eachPage(t, func(path, text string) {
		if base := filepath.Base(path); base != "CHANGELOG.md" { // what was true of a version stays
			pages[strings.TrimPrefix(filepath.ToSlash(path), "../../")] = strings.Join(strings.Fields(text), " ") // wherever its lines end
		}
	})
	for _, q := range quantities {
		values, home := map[string][]string{}, false
		for _, statement := range q.statements {
			pattern, found := regexp.MustCompile(statement), false
			for page, text := range pages {
				for _, match := range pattern.FindAllStringSubmatch(text, -1) {
					found, home = true, home || page == q.home
					value := sameUnit(match[1])
					values[value] = append(values[value], page)
				}
			}
			if !found {
				t.Errorf("%s: no page has %q any more: correct or delete the statement", q.what, statement)
			}
		}
		switch {
		case !home:
			t.Errorf("%s: %s does not have it: want the number's home", q.what, q.home)
		case len(values) > 1:
			t.Errorf("%s: pages contradict each other: %v; %s is its home", q.what, values, q.home)
		}
	}
}

var (
	numberWords = strings.NewReplacer("an hour", "1h", "two", "2", "three", "3", "four", "4", "five", "5", "ten", "10")
	unit        = regexp.MustCompile(`^(\d+) ?(s|m|h)[a-z]*$`)
)

// sameUnit returns a number in one form: "two minutes", "2 minutes" and "2m" are the same.
func sameUnit(number string) string {
	return unit.ReplaceAllString(numberWords.Replace(strings.ToLower(number)), "$1$2")
}

func TestSameUnit(t *testing.T) {
	for number, want := range map[string]string{"two minutes": "2m", "2m": "2m", "30 s": "30s", "30 seconds": "30s", "an hour": "1h",
		"1h": "1h", "1 hour": "1h", "85%": "85%", "12 to 30 minutes": "12 to 30 minutes", "Ten minutes": "10m"} {
		if got := sameUnit(number); got != want {
			t.Errorf("%s: got %s, want %s", number, got, want)
		}
	}
}

// termRow matches a row of the table of terms.
var termRow = regexp.MustCompile(`(?m)^\| ([A-Za-z ]+) \| (.*) \|$`)

// TestTermsBeforeUse checks the order of terms: none is used above its row, neither on the page of the concepts nor on the page with the
// doors.
func TestTermsBeforeUse(t *testing.T) {
	root := filepath.Join("..", "..")
	table := read(t, filepath.Join(root, concepts))
	var terms, meanings []string
	for _, row := range termRow.FindAllStringSubmatch(table, -1) {
		if row[1] != "term" {
			terms, meanings = append(terms, row[1]), append(meanings, row[2])
		}
	}
	if len(terms) != 12 {
		t.Errorf("%s: %d terms, want 12: %q", concepts, len(terms), terms)
	}
	for i, meaning := range meanings {
		for _, later := range terms[i+1:] {
			if uses(meaning, later) {
				t.Errorf("%s: the row of %q uses %q, which a later row defines", concepts, terms[i], later)
			}
		}
	}
	before, _, found := strings.Cut(read(t, filepath.Join(root, doors)), concepts)
	if !found {
		t.Fatalf("%s does not link %s", doors, concepts)
	}
	own := []string{"environment", "claim", "receipt", "steps image", "cluster file", "agent", "Lease", "reaper", "flavour", "rail"}
	for _, term := range own {
		if uses(withoutCode(before), term) {
			t.Errorf("%s: it uses %q before it links %s", doors, term, concepts)
		}
	}
}

// uses reports whether a text has a term. The noun run has an article, unlike the verb.
func uses(text, term string) bool {
	if term == "run" {
		return regexp.MustCompile(`(?i)\b(?:a|an|the|one|each|every|this|that|failed) run\b|\bruns of\b`).MatchString(text)
	}
	return regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(term) + `s?\b`).MatchString(text)
}
