// SPDX-License-Identifier: Apache-2.0

package fail

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestReasonAndAdvice(t *testing.T) {
	root := errors.New("root")
	inner := Because(GPUMissing, fmt.Errorf("inner: %w", root))
	tests := []struct {
		name   string
		err    error
		reason Reason
		next   string
	}{
		{"none", root, Internal, ""},
		{"its own", inner, GPUMissing, ""},
		{"wrapped", fmt.Errorf("outer: %w", inner), GPUMissing, ""},
		{"advised", Advise(inner, "oc get %s", "x"), GPUMissing, "oc get x"},
		{"advised within", fmt.Errorf("outer: %w", Advise(inner, "look")), GPUMissing, "look"},
		{"another reason outside", Because(SyncFailed, Advise(inner, "look")), SyncFailed, "look"},
		{"joined", errors.Join(root, inner), GPUMissing, ""},
		{"joined, each with advice", fmt.Errorf("all: %w", errors.Join(Advise(inner, "look"), root, Because(SyncFailed, Advise(root, "fix")))),
			GPUMissing, "look\nfix"},
		{"joined, with the same advice", errors.Join(Advise(inner, "look"), Advise(root, "look")), GPUMissing, "look"},
		{"joined, and advised outside", Advise(errors.Join(Advise(inner, "look"), Advise(root, "fix")), "do"), GPUMissing, "do"},
		{"two in one sentence", fmt.Errorf("%w (%w)", Advise(inner, "look"), Advise(root, "fix")), GPUMissing, "look\nfix"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := ReasonOf(test.err); got != test.reason {
				t.Errorf("ReasonOf = %s, want %s", got, test.reason)
			}
			if got := NextOf(test.err); got != test.next {
				t.Errorf("NextOf = %q, want %q", got, test.next)
			}
			if !errors.Is(test.err, root) {
				t.Error("the cause is lost")
			}
		})
	}
}

// TestEveryReasonIsExplained checks that docs/reference/reasons.md and the closed list have the same reasons.
func TestEveryReasonIsExplained(t *testing.T) {
	docs, err := os.ReadFile("../../docs/reference/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(docs)) {
		cells := strings.Split(line, "|")
		if len(cells) > 3 && strings.TrimSpace(cells[1]) != "reason" && !strings.Contains(cells[1], "---") {
			documented[strings.TrimSpace(cells[1])] = true
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			value, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
			if err != nil || value != name.Name {
				t.Errorf("reason %s has the value %q, want its name", name.Name, value)
			}
			if !documented[name.Name] {
				t.Errorf("reason %s has no row in docs/reference/reasons.md", name.Name)
			}
			delete(documented, name.Name)
		}
		return true
	})
	for reason := range documented {
		t.Errorf("docs/reference/reasons.md explains %s, which is no reason", reason)
	}
}
