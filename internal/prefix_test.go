// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// TestPrefix fails if a label, an annotation or an event has another domain than package project's, or if a page or a file names one that
// no code sets.
func TestPrefix(t *testing.T) {
	domain := strings.Split(strings.TrimSuffix(project.LabelPrefix, "/"), ".")
	slices.Reverse(domain)
	if reversed := strings.Join(domain, ".") + "."; reversed != project.ReverseDomain {
		t.Errorf("the domain of labels is %s reversed, want %s", reversed, project.ReverseDomain)
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", "..", "ls-files").Output()
	if err != nil {
		t.Fatalf("listing the files: %v", err)
	}
	texts, keys := map[string]string{}, map[string]bool{}
	for name := range strings.FieldsSeq(string(out)) {
		text, err := os.ReadFile("../" + name)
		if err != nil {
			continue // deleted, but not committed
		}
		texts[name] = string(text)
		if !strings.HasPrefix(name, "internal/") || !strings.HasSuffix(name, ".go") {
			continue
		}
		for _, key := range prefixed(t, name, text) {
			keys[key] = true
		}
	}
	own := regexp.MustCompile(regexp.QuoteMeta(project.LabelPrefix) + `([a-z-]+)|` + regexp.QuoteMeta(project.ReverseDomain) + `([a-z-]+)`)
	other := regexp.MustCompile(`(?:^|[^/\w.-])((?:[\w-]+\.)*ml-dev-env(?:\.[\w-]+)*/|[\w.]+\.ml-dev-env\.)([a-z-]+)`)
	for name, text := range texts {
		for _, found := range own.FindAllStringSubmatch(text, -1) {
			if key := found[1] + found[2]; !keys[key] {
				t.Errorf("%s names %s, which no code sets", name, found[0])
			}
		}
		for _, found := range other.FindAllStringSubmatch(text, -1) {
			if keys[found[2]] && found[1] != project.LabelPrefix && found[1] != project.ReverseDomain {
				t.Errorf("%s: %s%s has not the domain of package project", name, found[1], found[2])
			}
		}
	}
}

// prefixed returns what a file appends to the constants of package project.
func prefixed(t *testing.T, name string, text []byte) (keys []string) {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if sum, is := n.(*ast.BinaryExpr); is {
			if slices.Contains([]string{"LabelPrefix", "ReverseDomain"}, last(sum.X)) {
				if appended, is := sum.Y.(*ast.BasicLit); is {
					key, _ := strconv.Unquote(appended.Value)
					keys = append(keys, strings.TrimRight(key, "."))
				}
			}
		}
		return true
	})
	return keys
}
