// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// A call ends before the shell's next command or a comment.
	call     = regexp.MustCompile(`(?:^|[\s(=$])(?:bin/)?mlenv ([a-z][^#|;&)$]*)`)
	makeCall = regexp.MustCompile(`^(?:\$ )?make ([a-z][a-z0-9-]*)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInID  = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// Each item of the page names the unproven thing and the command that proves it.
func TestUnproven(t *testing.T) {
	items := regexp.MustCompile(`(?m)^- .*(?:\n  .*)*`).FindAllString(read(t, filepath.Join("..", "..", "docs", "project", "unproven.md")), -1)
	for _, item := range items {
		if what, command, found := strings.Cut(item, ": "); !found || what == "-" || !span.MatchString(command) {
			t.Errorf("%s: want what is unproven, and after a colon the command that proves it", item)
		}
	}
	if len(items) < 20 {
		t.Errorf("%d items found, want all of the page", len(items))
	}
}

// TestDocs checks every page of the repository: the targets of links exist, headings included, and commands in code are
// commands of mlenv and targets of make, with existing flags.
func TestDocs(t *testing.T) {
	targets := makeTargets(t)
	pages, links, calls := 0, 0, 0
	eachPage(t, func(path, text string) {
		pages++
		for _, found := range link.FindAllStringSubmatch(withoutCode(text), -1) {
			links++
			checkLink(t, path, found[1])
		}
		for _, line := range code(text) {
			for _, found := range call.FindAllStringSubmatch(line, -1) {
				calls++
				words := strings.Fields(strings.TrimSuffix(strings.TrimSpace(found[1]), `\`))
				checkCommand(t, path, words)
			}
			if found := makeCall.FindStringSubmatch(line); found != nil {
				calls++
				if !targets[found[1]] {
					t.Errorf("%s: make %s: no such target", path, found[1])
				}
			}
		}
	})
	if pages < 30 || links < 100 || calls < 40 {
		t.Errorf("checked %d pages, %d links and %d calls; want all of the repository", pages, links, calls)
	}
}

// eachPage calls check with every page of the repository.
func eachPage(t *testing.T, check func(path, text string)) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist" ||
			name == "testdata") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		check(path, read(t, path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// code returns the lines of code: lines that are fenced or indented by four or more, as in these pages.
func code(text string) (lines []string) {
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced || strings.HasPrefix(line, "    ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// withoutCode returns the text without its code, because brackets in code are not links.
func withoutCode(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "    ") {
			kept.WriteString(span.ReplaceAllString(line, ""))
		}
	}
	return kept.String()
}

func checkLink(t *testing.T, page, to string) {
	t.Helper()
	if strings.Contains(to, "://") {
		return // outside this repository
	}
	file, id, _ := strings.Cut(to, "#")
	if file == "" {
		file = filepath.Base(page)
	}
	path := filepath.Join(filepath.Dir(page), file)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("%s: link %s: %v", page, to, err)
		return
	}
	if id == "" {
		return
	}
	for _, found := range heading.FindAllStringSubmatch(read(t, path), -1) {
		if idOf(found[1]) == id {
			return
		}
	}
	t.Errorf("%s: link %s: %s has no such heading", page, to, path)
}

// idOf returns the id that GitHub gives a heading.
func idOf(heading string) string {
	return strings.ReplaceAll(notInID.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
}
