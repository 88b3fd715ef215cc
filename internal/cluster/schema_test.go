package cluster

import (
	"encoding/json"

	"github.com/invopop/jsonschema"
)

// schemaOfFile returns the JSON schema of a cluster file. Editors use it to complete keys and mark mistakes. Load finds
// more mistakes than a schema can express.
func schemaOfFile() ([]byte, error) {
	reflector := jsonschema.Reflector{DoNotReference: true, Anonymous: true}
	schema := reflector.Reflect(&File{})
	schema.Title = "ml-dev-env cluster file"
	content, err := json.MarshalIndent(schema, "", "  ")
	return append(content, '\n'), err
}
