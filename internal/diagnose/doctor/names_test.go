package doctor

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// constants are the reasons of a file, with the meanings that their comments give.
func constants(t *testing.T, path string) map[fail.Reason]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	meanings := map[fail.Reason]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		kind := spec.Type
		if imported, ok := kind.(*ast.SelectorExpr); ok {
			kind = imported.Sel
		}
		if of, ok := kind.(*ast.Ident); !ok || of.Name != "Reason" {
			return true
		}
		for i := range spec.Names {
			value, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			_, meaning, ok := strings.Cut(spec.Doc.Text(), ": ")
			if !ok {
				t.Errorf("%s: constant %s: want a comment that begins with its name and a colon", path, value)
			}
			meanings[fail.Reason(value)] = strings.TrimSuffix(strings.Join(strings.Fields(meaning), " "), ".")
		}
		return true
	})
	if len(meanings) == 0 {
		t.Fatalf("%s has no constants", path)
	}
	return meanings
}

// TestNames: whatever NCCL's log and the devices may show has its place among the symptoms,
// every symptom is a word that exists, and docs/doctor.md has the table of all.
func TestNames(t *testing.T) {
	known := constants(t, "../../fail/reasons.go")
	for _, source := range []string{"names.go", "../../rdma/finding.go", "../../rdma/nccl/finding.go"} {
		for name, meaning := range constants(t, source) {
			known[name] = meaning
			if !slices.ContainsFunc(symptoms(), func(s symptom) bool { return s.name == name }) {
				t.Errorf("%s of %s has no place among the symptoms", name, source)
			}
		}
	}
	var table strings.Builder
	table.WriteString("| finding | question | mostly | what it means |\n| --- | --- | --- | --- |\n")
	seen := map[fail.Reason]bool{}
	for _, s := range symptoms() {
		if known[s.name] == "" || seen[s.name] {
			t.Errorf("symptom %s: is it a word of this or another package, and there once? (its meaning: %q)", s.name, known[s.name])
		}
		seen[s.name] = true
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", s.name, s.flow, s.level, known[s.name])
	}
	const path = "../../../docs/doctor.md"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	place := regexp.MustCompile(`(?s)(<!-- findings: [^\n]*-->\n).*?(<!-- end -->)`)
	if !place.Match(content) {
		t.Fatalf("%s has no place for the findings", path)
	}
	want := place.ReplaceAllString(string(content), "${1}"+strings.ReplaceAll(table.String(), "$", "$$")+"${2}")
	golden.File(t, path, want)
}
