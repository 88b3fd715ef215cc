package step

import (
	"encoding/json"
	"io"
)

// WriteJSON writes a value as --output=json shows it: indented, for eyes too.
func WriteJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
