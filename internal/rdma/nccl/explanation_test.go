// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestEveryNameIsExplained checks that the list of names and the explanations have the same names.
func TestEveryNameIsExplained(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "finding.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[fail.Reason]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			value, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
			if err != nil || value != name.Name {
				t.Errorf("name %s has the value %q, want its own", name.Name, value)
			}
			names[fail.Reason(name.Name)] = true
		}
		return true
	})
	for name := range names {
		e := explanations()[name]
		if e.cause == "" || e.fix == "" {
			t.Errorf("%s has no cause or no fix", name)
		}
		if strings.HasSuffix(e.cause, ".") || strings.HasSuffix(e.fix, ".") {
			t.Errorf("%s ends with a full stop: causes are continued", name)
		}
	}
	for name := range explanations() {
		if !names[name] {
			t.Errorf("%s is explained and no finding", name)
		}
	}
}
