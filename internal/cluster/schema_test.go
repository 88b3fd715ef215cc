// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"maps"
	"path"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"
)

// schemaOfFile returns the JSON schema of a cluster file. Editors use it to complete keys and mark mistakes. Load finds
// more mistakes than a schema can express. A key's description is the comment on its field.
func schemaOfFile() ([]byte, error) {
	reflector := jsonschema.Reflector{DoNotReference: true, Anonymous: true}
	if err := reflector.AddGoComments(reflect.TypeFor[File]().PkgPath(), "./"); err != nil {
		return nil, err
	}
	maps.DeleteFunc(reflector.CommentMap, func(name, _ string) bool { return strings.Count(path.Base(name), ".") < 2 })
	for name, text := range reflector.CommentMap {
		reflector.CommentMap[name] = strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
	}
	schema := reflector.Reflect(&File{})
	schema.Title = "ml-dev-env cluster file"
	content, err := json.MarshalIndent(schema, "", "  ")
	return append(content, '\n'), err
}
