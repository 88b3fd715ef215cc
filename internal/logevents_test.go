// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// eventRow matches a row of the table of events in docs/reference/log.md.
var eventRow = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (.*?) \\|")

// TestLogEvents compares the events in the code with the table in docs/reference/log.md. A line of the log says a thing once: a message
// that was formatted has attributes only if it is an event, and then event is the first.
func TestLogEvents(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/log.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, row := range eventRow.FindAllStringSubmatch(string(page), -1) {
		want[row[1]] = strings.ReplaceAll(row[2], "`", "")
	}
	found := map[string][]string{}
	files := token.NewFileSet()
	err = fs.WalkDir(os.DirFS("."), ".", func(name string, _ fs.DirEntry, err error) error {
		// The agent's own log is for its container, and has the words of others in attributes.
		if err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "agent/") {
			return err
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			message, attributes := logged(call)
			if len(attributes) == 0 {
				return true
			}
			_, constant := message.(*ast.BasicLit)
			switch event, is := literal(attributes[0]); {
			case is && event == "event" && len(attributes) > 1:
				name, _ := literal(attributes[1])
				for _, key := range keys(attributes[2:]) {
					if !slices.Contains(found[name], key) {
						found[name] = append(found[name], key)
					}
				}
			case !constant && call.Ellipsis == token.NoPos:
				t.Errorf("%s: the message has its values already: attributes are for the events of docs/reference/log.md", files.Position(call.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for event, attributes := range found {
		slices.Sort(attributes)
		if got := strings.Join(attributes, ", "); got != want[event] {
			t.Errorf("event %s has the attributes %s; docs/reference/log.md has %q", event, got, want[event])
		}
		delete(want, event)
	}
	for event := range want {
		t.Errorf("docs/reference/log.md has the event %s, which no line of a log has", event)
	}
}

// logged returns the message and the attributes of a call that logs, nil for any other call.
func logged(call *ast.CallExpr) (message ast.Expr, attributes []ast.Expr) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	name := ""
	if ok {
		name = selector.Sel.Name
	} else if called, is := call.Fun.(*ast.Ident); is {
		name = called.Name
	}
	switch {
	case name == "say" && len(call.Args) > 1:
		return call.Args[1], call.Args[2:]
	case ok && slices.Contains([]string{"Info", "Warn", "Error"}, name) && len(call.Args) > 0 &&
		strings.HasSuffix(strings.ToLower(fmt.Sprint(last(selector.X))), "log"):
		return call.Args[0], call.Args[1:]
	case name == "append" && len(call.Args) > 0: // attributes that are passed on
		if list, is := call.Args[0].(*ast.CompositeLit); is {
			return call, list.Elts
		}
	}
	return nil, nil
}

// last returns the last name of an expression such as t.Log.
func last(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	text, ok := e.(*ast.BasicLit)
	if !ok {
		return "", false
	}
	value, err := strconv.Unquote(text.Value)
	return value, err == nil
}

// keys returns the keys of attributes, as pairs or as slog's calls.
func keys(attributes []ast.Expr) (all []string) {
	for i := 0; i < len(attributes); i++ {
		if call, ok := attributes[i].(*ast.CallExpr); ok && len(call.Args) > 1 {
			key, _ := literal(call.Args[0])
			all = append(all, key)
			continue
		}
		key, _ := literal(attributes[i])
		all = append(all, key)
		i++
	}
	return all
}
