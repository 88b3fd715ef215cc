// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Load reads a cluster file. It is strict: an unknown or repeated key, a wrong type or a value that cannot be is an error,
// and all of them are returned at once, as Problems, with their lines. name is the file's name in them.
func Load(name string, content []byte) (File, error) {
	file := Default()
	if err := Decode(name, content, &file, "cluster.name, cluster.api and cluster.namespace", file.Validate); err != nil {
		return File{}, err
	}
	return file, nil
}

// Decode reads another YAML file into a struct, as strictly as Load. least are keys that the file must have, and validate
// returns the mistakes in what was read.
func Decode(name string, content []byte, into any, least string, validate func() field.ErrorList) error {
	reader := &reader{file: name, nodes: map[string]*yaml.Node{}, misspelt: map[string]bool{}}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return Problems{{File: name, Line: 1, Column: 1, Want: "the file is empty; want at least " + least}}
		}
		want := "not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")
		if strings.Contains(want, "did not find expected") { // the parser names where the block begins
			want += "; look for a wrong indentation or an open bracket in the block that begins here"
		}
		return Problems{{File: name, Line: lineOf(err), Column: 1, Want: want}}
	}
	var second yaml.Node
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		reader.problem(&second, "", "", "a second document; want one a file")
	}
	reader.value(document.Content[0], reflect.ValueOf(into).Elem(), "")
	reader.validate(validate())
	if len(reader.problems) > 0 {
		reader.problems.sort()
		return reader.problems
	}
	return nil
}

// lineOf returns the line that the YAML parser names in its message, or 1.
func lineOf(err error) int {
	_, after, _ := strings.Cut(err.Error(), "line ")
	number, _, _ := strings.Cut(after, ":")
	line, _ := strconv.Atoi(number)
	return max(line, 1)
}

// reader fills Go values from YAML nodes and remembers where each value stood.
type reader struct {
	file  string
	nodes map[string]*yaml.Node
	// misspelt are the keys that were probably meant by unknown ones: they are not missing too.
	misspelt map[string]bool
	problems Problems
}

func (r *reader) problem(at *yaml.Node, path, value, want string, args ...any) {
	r.problems = append(r.problems, Problem{
		File: r.file, Line: max(at.Line, 1), Column: max(at.Column, 1), Path: path, Value: value, Want: fmt.Sprintf(want, args...),
	})
}

func (r *reader) value(node *yaml.Node, into reflect.Value, path string) {
	if node.Kind == yaml.AliasNode || node.Anchor != "" {
		r.problem(node, path, "", "anchors and aliases are not supported; write the value out")
		return
	}
	r.nodes[path] = node
	// null is the same as leaving the key out.
	if node.Tag == "!!null" {
		return
	}
	kind, want, read := yaml.ScalarNode, "one value", r.scalar
	if text, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		read = func(node *yaml.Node, _ reflect.Value, path string) {
			if err := text.UnmarshalText([]byte(node.Value)); err != nil {
				r.problem(node, path, node.Value, "%v", err)
			}
		}
	} else {
		switch into.Kind() {
		case reflect.Struct:
			kind, want, read = yaml.MappingNode, "keys and values", r.structure
		case reflect.Map:
			kind, want, read = yaml.MappingNode, "keys and values", r.mapping
		case reflect.Slice:
			kind, want, read = yaml.SequenceNode, "a list, as in [a, b]", r.list
		}
	}
	if node.Kind != kind {
		names := map[yaml.Kind]string{yaml.MappingNode: "mapping", yaml.SequenceNode: "list", yaml.ScalarNode: "single value"}
		r.problem(node, path, node.Value, "want %s, not a %s", want, names[node.Kind])
		return
	}
	read(node, into, path)
}

func (r *reader) structure(node *yaml.Node, into reflect.Value, path string) {
	fields := map[string]reflect.Value{}
	var names []string
	for i := range into.NumField() {
		name, _, _ := strings.Cut(into.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = into.Field(i)
		names = append(names, name)
	}
	pathOf := func(key string) string { return strings.TrimPrefix(path+"."+key, ".") }
	r.keys(node, pathOf, func(key, value *yaml.Node) {
		if field, ok := fields[key.Value]; ok {
			r.value(value, field, pathOf(key.Value))
			return
		}
		hint := "want one of " + strings.Join(names, ", ")
		if near := humanize.Nearest(key.Value, names); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
			r.misspelt[pathOf(near)] = true
		}
		r.problem(key, pathOf(key.Value), "", "unknown key; %s", hint)
	})
}

// keys reads each key of a mapping once.
func (r *reader) keys(node *yaml.Node, pathOf func(string) string, read func(key, value *yaml.Node)) {
	seen := map[string]int{}
	for pair := range slices.Chunk(node.Content, 2) {
		key := pair[0]
		if line := seen[key.Value]; line > 0 {
			r.problem(key, pathOf(key.Value), "", "the key stands in line %d already", line)
			continue
		}
		seen[key.Value] = key.Line
		read(key, pair[1])
	}
}

func (r *reader) list(node *yaml.Node, into reflect.Value, path string) {
	list := reflect.MakeSlice(into.Type(), len(node.Content), len(node.Content))
	for i, item := range node.Content {
		r.value(item, list.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
	into.Set(list)
}

// mapping reads keys that the file chooses, unlike the keys of a structure.
func (r *reader) mapping(node *yaml.Node, into reflect.Value, path string) {
	into.Set(reflect.MakeMap(into.Type()))
	pathOf := func(key string) string { return fmt.Sprintf("%s[%s]", path, key) }
	r.keys(node, pathOf, func(key, content *yaml.Node) {
		value := reflect.New(into.Type().Elem()).Elem()
		r.value(content, value, pathOf(key.Value))
		into.SetMapIndex(reflect.ValueOf(key.Value), value)
	})
}

func (r *reader) scalar(node *yaml.Node, into reflect.Value, path string) {
	number, err := strconv.Atoi(node.Value)
	switch kind := into.Kind(); {
	// gid_index: 3 is as good as gid_index: "3"; a name is never a boolean.
	case kind == reflect.String && node.Tag != "!!str" && node.Tag != "!!int":
		r.problem(node, path, node.Value, "want text; put it in quotes")
	case kind == reflect.String:
		into.SetString(node.Value)
	case kind == reflect.Int && (err != nil || node.Tag != "!!int"):
		r.problem(node, path, node.Value, "want a whole number without quotes")
	case kind == reflect.Int:
		into.SetInt(int64(number))
	case kind == reflect.Bool && node.Tag != "!!bool":
		r.problem(node, path, node.Value, "want true or false")
	case kind == reflect.Bool:
		into.SetBool(strings.EqualFold(node.Value, "true"))
	default:
		panic(fmt.Sprintf("key %s has a type that no value is read into: %s", path, kind)) // a key must not be ignored
	}
}
