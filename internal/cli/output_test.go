// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// outputs are the kinds that commands print as JSON and YAML, with the Go types of their fields.
var outputs = []struct {
	kind, command, folder, typeName string
	list                            bool
}{
	{"RunStatus", "mlenv status", "runs", "runStatus", false},
	{"RunList", "mlenv runs", "runs", "summary", true},
	{"Top", "mlenv top", "live", "State", false},
	{"Preflight", "mlenv preflight", "../steps/preflight", "Plan", false},
	{"NodeList", "mlenv nodes", "nodes", "node", true},
	{"ClaimList", "mlenv claims", "claims", "claim", true},
	{"Doctor", "mlenv doctor", "../doctor", "Report", false},
}

// TestOutputReferenceIsCurrent: the page of the fields that programs read is generated from the types, so that a field that goes, comes or
// changes its type is seen; -update writes it.
func TestOutputReferenceIsCurrent(t *testing.T) {
	var page strings.Builder
	fmt.Fprintf(&page, "# Output for programs\n\nWritten by `make generate` from the types of the commands. `--output=json` and "+
		"`--output=yaml` of these commands print an object\n"+
		"with `apiVersion`, which is `%s`, and `kind`. A later version may add fields, kinds of values in a word, and objects to a list. If a "+
		"field\n"+
		"goes or gets another meaning, `apiVersion` changes. Fields without a value are left out, except in lists and numbers that are always "+
		"known.\n"+
		"Times are in RFC 3339.\n", command.OutputVersion)
	for _, output := range outputs {
		fmt.Fprintf(&page, "\n## %s\n\n`%s --output=json`", output.kind, output.command)
		if output.list {
			page.WriteString(": `items` is a list of objects with these fields.")
		}
		page.WriteString("\n\n| field | type | meaning |\n| --- | --- | --- |\n")
		rows := 0
		fieldsOf(t, output.folder, output.typeName, func(name, kind, meaning string) {
			rows++
			fmt.Fprintf(&page, "| `%s` | %s | %s |\n", name, kind, meaning)
		})
		if rows < 5 {
			t.Errorf("%s has %d fields; want those of %s", output.kind, rows, output.typeName)
		}
		source := filepath.Join(output.folder, "*.go")
		if output.kind == "Preflight" || output.kind == "Doctor" {
			source = "ops/*.go"
		}
		if !mentions(t, source, fmt.Sprintf("PrintAs(%q", output.kind)) {
			t.Errorf("no command prints the kind %s", output.kind)
		}
	}
	golden.File(t, "../../docs/reference/output.md", page.String())
}

func mentions(t *testing.T, pattern, text string) bool {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), text) {
			return true
		}
	}
	return false
}

// source is a package's types, each with the file that declares it.
type source struct {
	folder string
	types  map[string]*ast.TypeSpec
	files  map[string]*ast.File
}

func readSource(t *testing.T, folder string) source {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no package in %s: %v", folder, err)
	}
	s := source{folder: folder, types: map[string]*ast.TypeSpec{}, files: map[string]*ast.File{}}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.TypeSpec); ok {
				s.types[spec.Name.Name], s.files[spec.Name.Name] = spec, file
			}
			return true
		})
	}
	return s
}

// fieldsOf calls row for every field of a struct in JSON, with the path of those in structs below it.
func fieldsOf(t *testing.T, folder, typeName string, row func(name, kind, meaning string)) {
	t.Helper()
	describe(t, readSource(t, folder), typeName, "", map[string]bool{}, row)
}

func describe(t *testing.T, s source, typeName, prefix string, within map[string]bool, row func(name, kind, meaning string)) {
	t.Helper()
	spec := s.types[typeName]
	if spec == nil {
		t.Fatalf("no type %s in %s", typeName, s.folder)
	}
	fields, ok := spec.Type.(*ast.StructType)
	if !ok { // another name of a type
		found := resolve(t, s, s.files[typeName], spec.Type)
		if found.fields != "" {
			describe(t, found.source, found.fields, prefix, within, row)
		}
		return
	}
	id := s.folder + "." + typeName
	if within[id] {
		return
	}
	within[id] = true
	defer delete(within, id)
	for _, field := range fields.Fields.List {
		tag := ""
		if field.Tag != nil {
			text, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			tag = reflect.StructTag(text).Get("json")
		}
		name, _, _ := strings.Cut(tag, ",")
		if name == "-" || name == "" && len(field.Names) > 0 {
			continue // not in JSON
		}
		found := resolve(t, s, s.files[typeName], field.Type)
		if name == "" { // embedded
			describe(t, found.source, found.fields, prefix, within, row)
			continue
		}
		row(prefix+name, found.kind, meaningOf(t, field, fields.Fields))
		if found.fields != "" {
			describe(t, found.source, found.fields, prefix+name+found.below, within, row)
		}
	}
}

// verb matches what a comment of a field has between the name in Go and the meaning.
var verb = regexp.MustCompile(`^(?:is|are|has|have|describes?|lists?|reports (whether|that)) `)

// camel matches a name in Go that is no word.
var camel = regexp.MustCompile(`[a-z][A-Z]`)

// meaningOf returns the comment of a field without its name in Go, which readers of JSON do not know. within are the struct's fields.
func meaningOf(t *testing.T, field *ast.Field, within *ast.FieldList) string {
	t.Helper()
	text := strings.Join(strings.Fields(cmp.Or(field.Doc.Text(), field.Comment.Text())), " ")
	name := field.Names[0].Name
	rest, named := strings.CutPrefix(text, name+" ")
	if at := verb.FindStringSubmatchIndex(rest); named && at != nil {
		text = rest[at[1]:]
		if at[2] >= 0 {
			text = "whether " + text
		}
	} else if named || text == "" {
		t.Errorf("field %s: its comment is %q; want \"%s is ...\", for a reader of its JSON", name, text, name)
		return text
	}
	for _, other := range within.List {
		for _, id := range other.Names {
			if camel.MatchString(id.Name) && strings.Contains(text, id.Name) {
				t.Errorf("field %s: its comment has %s, which is no name in JSON", name, id.Name)
			}
		}
	}
	return plain.Replace(strings.ReplaceAll(strings.ToUpper(text[:1])+text[1:], "|", `\|`))
}

// shape is a type in JSON; fields is the struct with its fields, "" for none, and below what leads to them.
type shape struct {
	kind, fields, below string
	source              source
}

var basics = map[string]string{
	"string": "text", "bool": "true or false", "int": "number", "int64": "number", "int32": "number", "float64": "number", "any": "any value",
	"uint64": "number",
	// Of other modules.
	"time.Time": "time", "time.Duration": "nanoseconds", "json.RawMessage": "any value",
}

func resolve(t *testing.T, s source, file *ast.File, expression ast.Expr) shape {
	t.Helper()
	switch e := expression.(type) {
	case *ast.StarExpr:
		return resolve(t, s, file, e.X)
	case *ast.ArrayType:
		of := resolve(t, s, file, e.Elt)
		of.kind, of.below = "list of "+of.kind, "[]"+of.below
		return of
	case *ast.MapType:
		of := resolve(t, s, file, e.Value)
		of.kind, of.below = "map of "+of.kind, ".*"+of.below
		return of
	case *ast.Ident:
		if kind := basics[e.Name]; kind != "" {
			return shape{kind: kind}
		}
		return declared(t, s, e.Name)
	case *ast.SelectorExpr:
		name := fmt.Sprint(e.X.(*ast.Ident).Name, ".", e.Sel.Name)
		if kind := basics[name]; kind != "" {
			return shape{kind: kind}
		}
		for _, imported := range file.Imports {
			path, _ := strconv.Unquote(imported.Path.Value)
			if inner, ok := strings.CutPrefix(path, "github.com/ml-dev-env/ml-dev-env/internal/"); ok &&
				filepath.Base(inner) == e.X.(*ast.Ident).Name {
				return declared(t, readSource(t, filepath.Join("..", inner)), e.Sel.Name)
			}
		}
	}
	t.Fatalf("the type %T of %s has no description", expression, s.folder)
	return shape{}
}

// declared returns the shape of a type that the package declares.
func declared(t *testing.T, s source, name string) shape {
	t.Helper()
	spec := s.types[name]
	if spec == nil {
		t.Fatalf("no type %s in %s", name, s.folder)
	}
	if _, ok := spec.Type.(*ast.StructType); ok {
		return shape{kind: "object", fields: name, below: ".", source: s}
	}
	return resolve(t, s, s.files[name], spec.Type)
}
