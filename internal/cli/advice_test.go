// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/steps"
)

// shownBy lists the commands that print a file's or folder's advice if that advice names flags without a command: commands
// of mlenv, and the steps by their names.
var shownBy = map[string][]string{
	"cli/dev":                {"mlenv up"},
	"clusterfile":            {"mlenv up", "mlenv preflight", "mlenv build"},
	"diagnose/rejections.go": {"provision", "mlenv up"},
	"doctor":                 {"mlenv up"}, // "provision it with ..."
	"cli/runs/imports.go":    {"mlenv run"},
	"env/local":              {"mlenv run"},
	"env/lease":              {"provision", "mlenv up"},
	"env/objects":            {"provision", "preflight", "mlenv up", "mlenv preflight"},
	"install":                {"mlenv install"},
	"install/admin":          {"mlenv admin"},
	"install/uninstall.go":   {"mlenv uninstall"},
	"source/git":             {"sync-repo"},
	"command/confirm.go":     {"mlenv claims delete", "mlenv prune"},
	"steps/checkfabric":      {"check-fabric", "mlenv check-fabric"},
	"steps/preflight":        {"preflight", "mlenv preflight"},
	"steps/provision":        {"provision", "mlenv up"},
	"steps/teardown":         {"mlenv down"},
	"steps/train":            {"mlenv train", "mlenv dev"},
	"cli/initcluster":        {"mlenv init"},
}

var (
	clause  = regexp.MustCompile(`[,;(\n]|: | or | and `)
	flag    = regexp.MustCompile(`--([a-z][a-z0-9-]+)`)
	foreign = regexp.MustCompile(`\b(oc|kubectl|git|pip|tkn|skopeo|py-spy|mlenv)\b`)
	// advised matches a call of mlenv in a sentence.
	advised = regexp.MustCompile(`\bmlenv ([a-z][^#|;:&)(,\n]*)`)
)

// TestAdvice: the next steps that failures print call commands of mlenv that exist, and name flags of the command that
// prints them.
func TestAdvice(t *testing.T) {
	const root = ".."
	looked := 0
	err := filepath.WalkDir(root, func(source string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(source) != ".go" || strings.HasSuffix(source, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, source, nil, 0)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, source)
		ast.Inspect(file, func(node ast.Node) bool {
			for _, text := range adviceIn(node) {
				looked++
				checkAdvice(t, files.Position(node.Pos()).String(), filepath.ToSlash(name), text)
			}
			return true
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if looked < 100 {
		t.Errorf("checked %d texts; want those of all failures", looked)
	}
}

// adviceIn returns the texts of a call of fail.Advise, of a field Next, or of a variable next.
func adviceIn(node ast.Node) (texts []string) {
	var of []ast.Node
	switch node := node.(type) {
	case *ast.CallExpr:
		if called, ok := node.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Advise" && len(node.Args) > 1 {
			of = append(of, node.Args[1])
		}
	case *ast.KeyValueExpr:
		if name, ok := node.Key.(*ast.Ident); ok && name.Name == "Next" {
			of = append(of, node.Value)
		}
	case *ast.AssignStmt:
		for i, to := range node.Lhs {
			if selected, ok := to.(*ast.SelectorExpr); ok {
				to = selected.Sel
			}
			if name, ok := to.(*ast.Ident); ok && strings.EqualFold(name.Name, "next") && i < len(node.Rhs) {
				of = append(of, node.Rhs[i])
			}
		}
	}
	for _, expression := range of {
		ast.Inspect(expression, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					texts = append(texts, text)
				}
			}
			return true
		})
	}
	return texts
}

func checkAdvice(t *testing.T, where, file, text string) {
	t.Helper()
	if strings.HasPrefix(text, " ") {
		return // the end of a command that begins in another text
	}
	commands := shownBy[file]
	if commands == nil {
		commands = shownBy[path.Dir(file)]
	}
	for _, found := range advised.FindAllStringSubmatch(text, -1) {
		words := slices.DeleteFunc(strings.Fields(found[1]), func(word string) bool { return strings.Contains(word, "%") })
		checkCommand(t, where, words)
	}
	for _, part := range clause.Split(text, -1) {
		if foreign.MatchString(part) {
			continue
		}
		for _, found := range flag.FindAllStringSubmatch(part, -1) {
			if len(commands) == 0 {
				t.Errorf("%s: %q names a flag: want the command that has it, or the commands that print it in shownBy", where, text)
			}
			for _, name := range commands {
				if cmd := commandNamed(name); cmd == nil || !lookup(cmd, found[1]) {
					t.Errorf("%s: %q: %s has no flag --%s", where, text, name, found[1])
				}
			}
		}
	}
}

// commandNamed returns a command of mlenv, or a step.
func commandNamed(name string) *cobra.Command {
	if words, ok := strings.CutPrefix(name, "mlenv "); ok {
		cmd, _, _ := newRoot().Find(strings.Fields(words))
		return cmd
	}
	for _, cmd := range steps.All() {
		if cmd.Name() == name {
			return cmd
		}
	}
	return nil
}
