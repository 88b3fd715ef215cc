// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestReferenceIsCurrent: the page of a cluster file's keys is generated from the schema and Default; -update writes it.
func TestReferenceIsCurrent(t *testing.T) {
	const path = "../../docs/reference/cluster-file.md"
	text, err := schemaOfFile()
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	defaults, err := json.Marshal(Default())
	if err != nil {
		t.Fatal(err)
	}
	page := keysPage{t: t}
	if err := json.Unmarshal(defaults, &page.defaults); err != nil {
		t.Fatal(err)
	}
	page.WriteString(`# Keys of a cluster file

Written by ` + "`make generate`" +
		`. [clusters/](../../clusters) has examples, [schema.json](../../clusters/schema.json) the same for editors;
` + "`mlenv init`" + ` writes a file from a live cluster, ` + "`mlenv validate`" + ` checks one. An absent key has its default; without one
it is empty, false or 0. Other keys are refused. A quantity is Kubernetes' own, as in 128Gi or 500m.
`)
	for at := schema.Properties.Oldest(); at != nil; at = at.Next() {
		fmt.Fprintf(&page, "\n## %s\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n", at.Key)
		page.key(at.Key, at.Value, slices.Contains(schema.Required, at.Key))
	}
	want := page.String()
	golden.File(t, path, want)
}

// keysPage is the part of the page that is written so far.
type keysPage struct {
	strings.Builder
	t        *testing.T
	defaults map[string]any
}

// key writes the row of a key, or the rows of the keys below it.
func (p *keysPage) key(path string, s *jsonschema.Schema, required bool) {
	below, prefix := s, path+"."
	if s.Items != nil && s.Items.Properties != nil {
		below, prefix = s.Items, path+"[]."
	}
	if below == s && s.Properties != nil {
		p.below(prefix, s)
		return
	}
	if s.Description == "" {
		p.t.Errorf("%s has no description", path)
	}
	value := p.defaultOf(path, s)
	if required {
		value = "required"
	}
	fmt.Fprintf(p, "| %s | %s | %s | %s |\n", path, typeOf(s), value, strings.ReplaceAll(s.Description, "|", `\|`))
	if below != s {
		p.below(prefix, below)
	}
}

func (p *keysPage) below(prefix string, s *jsonschema.Schema) {
	for at := s.Properties.Oldest(); at != nil; at = at.Next() {
		p.key(prefix+at.Key, at.Value, slices.Contains(s.Required, at.Key))
	}
}

// defaultOf returns the value of Default at the path, or the schema's default of an item's key.
func (p *keysPage) defaultOf(path string, s *jsonschema.Schema) string {
	var value any = p.defaults
	for name := range strings.SplitSeq(path, ".") {
		value = asMap(value)[name]
	}
	if value == nil {
		value = s.Default
	}
	switch value {
	case nil, "", false, 0.0, "0":
		return ""
	}
	return fmt.Sprintf("`%v`", value)
}

func asMap(value any) map[string]any {
	m, _ := value.(map[string]any)
	return m
}

// typeOf describes the values that are allowed.
func typeOf(s *jsonschema.Schema) string {
	switch {
	case len(s.Enum) > 0:
		var words []string
		for _, word := range s.Enum {
			words = append(words, fmt.Sprint(word))
		}
		return strings.Join(words, ", ")
	case len(s.OneOf) > 0 && s.OneOf[0].Title != "":
		return s.OneOf[0].Title
	case len(s.OneOf) > 0 && s.OneOf[0].Pattern != "":
		return "quantity"
	case len(s.OneOf) > 0:
		return typeOf(s.OneOf[0])
	case s.Type == "array" && s.Items.Type == "object":
		return "list"
	case s.Type == "array":
		return "list of " + s.Items.Type + "s"
	case s.Type == "object" && s.AdditionalProperties != nil:
		return "map to " + s.AdditionalProperties.Type + "s"
	case s.Minimum != "":
		return s.Type + " from " + string(s.Minimum)
	}
	return s.Type
}
