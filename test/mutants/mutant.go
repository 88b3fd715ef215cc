// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// kind is what a mutant changes.
type kind string

const (
	comparison  kind = "comparison"
	constant    kind = "constant"
	droppedCall kind = "dropped call"
	earlyReturn kind = "early return"
)

var kinds = []kind{comparison, constant, droppedCall, earlyReturn}

// mutant is a change of one line of a file.
type mutant struct {
	Package string `json:"package"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Kind    kind   `json:"kind"`
	// Old and New are the text that is replaced and its replacement, at the offset From of the file.
	From int    `json:"from"`
	Old  string `json:"old"`
	New  string `json:"new"`
}

func (m mutant) id() string { return fmt.Sprintf("%s:%d:%s", m.File, m.From, m.New) }

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s: %s -> %s", m.File, m.Line, m.Kind, shown(m.Old), shown(m.New))
}

func shown(text string) string {
	return cmp.Or(strings.Join(strings.Fields(text), " "), "nothing")
}

// apply returns the file with the change.
func (m mutant) apply(content []byte) []byte {
	return slices.Concat(content[:m.From], []byte(m.New), content[m.From+len(m.Old):])
}

// flipped are the operators and what becomes of them.
var flipped = map[token.Token]string{
	token.LSS: ">=", token.GEQ: "<", token.GTR: "<=", token.LEQ: ">", token.EQL: "!=", token.NEQ: "==", token.LAND: "||", token.LOR: "&&",
}

// silent are methods and functions that only print: without their call a program does the same.
var silent = []string{"Info", "Warn", "Error", "Debug", "Log", "Print", "Printf", "Println", "Fprint", "Fprintf", "Fprintln"}

// mutantsOf returns every mutant of a package's own files, in the order of the files. Whether one compiles is not known yet.
func mutantsOf(folder string) (all []mutant, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no Go files in %s: %w", folder, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found, err := mutantsIn(folder, file, content)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func mutantsIn(folder, file string, content []byte) (all []mutant, err error) {
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, file, content, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(of kind, from, to token.Pos, replacement string) {
		start, end := positions.Position(from), positions.Position(to)
		if start.Line != end.Line {
			return // want changes of single lines
		}
		old := string(content[start.Offset:end.Offset])
		all = append(all, mutant{Package: folder, File: file, Line: start.Line, Kind: of, From: start.Offset, Old: old, New: replacement})
	}
	text := func(node ast.Node) string {
		return string(content[positions.Position(node.Pos()).Offset:positions.Position(node.End()).Offset])
	}
	var results []*ast.FieldList // of the functions around a node
	var walk func(node ast.Node) bool
	walk = func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.ImportSpec, *ast.StructType:
			return false // tags and paths are no constants
		case *ast.FuncDecl:
			if n.Body != nil {
				results = append(results, n.Type.Results)
				ast.Inspect(n.Body, walk)
				results = results[:len(results)-1]
			}
			return false
		case *ast.FuncLit:
			results = append(results, n.Type.Results)
			ast.Inspect(n.Body, walk)
			results = results[:len(results)-1]
			return false
		case *ast.BinaryExpr:
			if operator := flipped[n.Op]; operator != "" {
				add(comparison, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), operator)
			}
		case *ast.BasicLit:
			if number, err := strconv.Atoi(n.Value); n.Kind == token.INT && err == nil {
				add(constant, n.Pos(), n.End(), strconv.Itoa(number+1))
			}
		case *ast.Ident:
			if other := map[string]string{"true": "false", "false": "true"}[n.Name]; other != "" {
				add(constant, n.Pos(), n.End(), other)
			}
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok && !slices.Contains(silent, called(call)) {
				add(droppedCall, n.Pos(), n.End(), "")
			}
		case *ast.BlockStmt:
			for _, statement := range n.List {
				if _, returns := statement.(*ast.ReturnStmt); !returns && len(results) > 0 {
					add(earlyReturn, statement.Pos(), statement.Pos(), returnOf(results[len(results)-1], text))
				}
			}
		}
		return true
	}
	ast.Inspect(parsed, walk)
	return all, nil
}

// called returns the name of the function or method.
func called(call *ast.CallExpr) string {
	switch of := call.Fun.(type) {
	case *ast.Ident:
		return of.Name
	case *ast.SelectorExpr:
		return of.Sel.Name
	}
	return ""
}

// returnOf returns the zero values of a function's results.
func returnOf(results *ast.FieldList, text func(ast.Node) string) string {
	var zeros []string
	if results != nil {
		for _, field := range results.List {
			for range max(1, len(field.Names)) {
				zeros = append(zeros, "*new("+text(field.Type)+")")
			}
		}
	}
	return strings.TrimSuffix("return "+strings.Join(zeros, ", "), " ") + "; "
}

// shuffled returns an endless choice by a seed, as a list in which the kinds take turns: the same seed gives the same list for the same
// tree.
func shuffled(all []mutant, seed uint64) (chosen []mutant) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // it must be the same again
	byKind := map[kind][]mutant{}
	for _, m := range all {
		byKind[m.Kind] = append(byKind[m.Kind], m)
	}
	for _, of := range kinds {
		random.Shuffle(len(byKind[of]), func(i, j int) { byKind[of][i], byKind[of][j] = byKind[of][j], byKind[of][i] })
	}
	for turn := 0; len(chosen) < len(all); turn++ {
		for _, of := range kinds {
			if turn < len(byKind[of]) {
				chosen = append(chosen, byKind[of][turn])
			}
		}
	}
	return chosen
}
