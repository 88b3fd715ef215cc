// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// The places of a version in examples and pages: this project's action in a workflow, by tag or by commit with the version as a comment,
// and the words and addresses before a version. Other projects' versions are in none of them. Versions v0.0.N are releases to try.
var (
	ownAction   = regexp.MustCompile(`(ml-dev-env/ml-dev-env@)(?:[0-9a-f]{40} # )?(v[0-9]+\.[0-9]+\.[0-9]+)`)
	ownVersions = regexp.MustCompile(`(ml-dev-env/releases/download/|/tasks:|/tags/|\brevision: |\bVERSION=|--version=|\brelease-|` +
		`\bexamples-|\bRelease |\bgit tag |\bpush origin |\bsuch as )(v(?:[1-9][0-9]*\.[0-9]+|0\.[1-9][0-9]*)\.[0-9]+)\b`)
	commits = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// exampleFiles returns the files that name a release: the examples, the pages and the action.
func exampleFiles(dir string) ([]string, error) {
	files := []string{"README.md", "SECURITY.md", "action.yml"}
	for _, folder := range []string{"docs", "examples"} {
		err := fs.WalkDir(os.DirFS(dir), folder, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && slices.Contains([]string{".md", ".yml", ".yaml"}, filepath.Ext(path)) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("looking for examples: %w", err)
		}
	}
	return files, nil
}

// PinExamples writes the version of a release, and the commit of its tag, into the examples and pages of the checkout in dir. No commit
// contains its own hash, so it runs after tagging, on main. Errors: InvalidInput if commit is no commit or no example names the action.
func PinExamples(dir, version, commit string) error {
	if !commits.MatchString(commit) {
		return fail.Becausef(fail.InvalidInput, "reading --commit: %q: want 40 hexadecimal digits, as git rev-parse '%s^{commit}' prints them",
			commit, version)
	}
	files, err := exampleFiles(dir)
	if err != nil {
		return err
	}
	pinned := 0
	for _, file := range files {
		path := filepath.Join(dir, file)
		before, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading an example: %w", err)
		}
		pinned += len(ownAction.FindAll(before, -1))
		after := ownAction.ReplaceAll(before, []byte("${1}"+commit+" # "+version))
		after = ownVersions.ReplaceAll(after, []byte("${1}"+version))
		if string(after) == string(before) {
			continue
		}
		if err := os.WriteFile(path, after, 0o644); err != nil {
			return fmt.Errorf("writing an example: %w", err)
		}
	}
	if pinned == 0 {
		return fail.Because(fail.InvalidInput, errors.New("looking for examples: none uses ml-dev-env/ml-dev-env@VERSION"))
	}
	return nil
}
