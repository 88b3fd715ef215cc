// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// constants returns the reasons that a file declares.
func constants(t *testing.T, path string) (names []fail.Reason) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
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
			names = append(names, fail.Reason(value))
		}
		return true
	})
	if len(names) == 0 {
		t.Fatalf("%s has no constants", path)
	}
	return names
}

// TestNames: everything that NCCL's log and the devices may show has its row in docs/reference/findings.md, and every row names an
// existing reason, with an existing flow and level.
func TestNames(t *testing.T) {
	known := constants(t, "../fail/reasons.go")
	for _, source := range []string{"names.go", "../rdma/finding.go", "../rdma/nccl/finding.go"} {
		for _, name := range constants(t, source) {
			known = append(known, name)
			if !slices.ContainsFunc(symptoms(), func(s symptom) bool { return s.name == name }) {
				t.Errorf("%s of %s has no row in docs/reference/findings.md", name, source)
			}
		}
	}
	seen := map[fail.Reason]bool{}
	for _, s := range symptoms() {
		if !slices.Contains(known, s.name) || seen[s.name] {
			t.Errorf("row %s: want a reason of this or another package, once", s.name)
		}
		seen[s.name] = true
		if !slices.Contains([]Flow{Start, Hang, Slow}, s.flow) || !slices.Contains([]fail.Level{fail.Broken, fail.Suspicious, fail.Note},
			s.level) {
			t.Errorf("row %s: its question is %q and its severity %q: want those of the other rows", s.name, s.flow, s.level)
		}
	}
}
