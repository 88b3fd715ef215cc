// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Format is a value of the flag --output.
type Format string

// The formats. Each command allows some of them.
const (
	// Text is prose and tables.
	Text Format = "text"
	JSON Format = "json"
	YAML Format = "yaml"
	// Names prints one name a line, for xargs.
	Names Format = "name"
)

// OutputFlag is the type of the flags --output and --log-format. It implements pflag.Value.
type OutputFlag struct {
	format  Format
	allowed []Format
}

// AddTo adds the flag to a command that allows Text, JSON and YAML, and perhaps Names. The first is the default.
func (o *OutputFlag) AddTo(flags *pflag.FlagSet, allowed ...Format) {
	use := "text, or json or yaml for programs"
	if slices.Contains(allowed, Names) {
		use += ", or name for one name per line"
	}
	o.AddUse(flags, use, allowed...)
}

// AddUse is AddTo for a command that allows other formats, or uses them in its own way.
func (o *OutputFlag) AddUse(flags *pflag.FlagSet, use string, allowed ...Format) {
	o.format, o.allowed = allowed[0], allowed
	flags.VarP(o, "output", "o", use)
}

func (o *OutputFlag) String() string { return string(o.format) }

// Type implements pflag.Value: the formats that are allowed.
func (o *OutputFlag) Type() string { return strings.Join(o.names(), "|") }

// Set implements pflag.Value.
func (o *OutputFlag) Set(s string) error {
	if !slices.Contains(o.allowed, Format(s)) {
		return fmt.Errorf("want %s", humanize.List(o.names(), "or"))
	}
	o.format = Format(s)
	return nil
}

func (o *OutputFlag) names() []string {
	names := make([]string, len(o.allowed))
	for i, format := range o.allowed {
		names[i] = string(format)
	}
	return names
}

// Is reports whether the format was chosen.
func (o *OutputFlag) Is(format Format) bool { return o.format == format }

// ForPeople reports whether the format is text.
func (o *OutputFlag) ForPeople() bool { return o.format == Text || o.format == "" }

// OutputVersion is the version of what commands print as JSON and YAML for programs. A new field keeps it; a field that goes, or gets
// another meaning, changes it.
const OutputVersion = "mlenv/v1"

// PrintAs is Print for a value of a documented kind: JSON and YAML are an object with apiVersion and kind. The elements of a list are
// its items.
func (o *OutputFlag) PrintAs(kind string, out io.Writer, value any, text func(io.Writer) error) error {
	if o.format == JSON || o.format == YAML {
		versioned, err := withVersion(kind, value)
		if err != nil {
			return err
		}
		value = versioned
	}
	return o.Print(out, value, text)
}

func withVersion(kind string, value any) (json.RawMessage, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q`, OutputVersion, kind)
	switch {
	case string(text) == "{}":
		return json.RawMessage(head + "}"), nil
	case text[0] == '{':
		return json.RawMessage(head + "," + string(text[1:])), nil
	case string(text) == "null": // an empty list
		text = []byte("[]")
	}
	return json.RawMessage(head + `,"items":` + string(text) + "}"), nil
}

// Print writes a value in the chosen format. text writes it as text. A command that allows Names prints a list whose
// elements have a name in JSON.
func (o *OutputFlag) Print(out io.Writer, value any, text func(io.Writer) error) error {
	switch o.format {
	case JSON:
		return WriteJSON(out, value)
	case YAML:
		return writeYAML(out, value)
	case Names:
		return writeNames(out, value)
	case Text:
	}
	var b strings.Builder
	err := text(&b)
	if _, failed := io.WriteString(out, ForTerminal(b.String())); err == nil {
		err = failed
	}
	return err
}

func writeNames(w io.Writer, list any) error {
	var named []struct {
		Name string `json:"name"`
	}
	text, err := json.Marshal(list)
	if err == nil {
		err = json.Unmarshal(text, &named)
	}
	for _, each := range named {
		_, failed := fmt.Fprintln(w, each.Name)
		err = cmp.Or(err, failed)
	}
	return err
}

// WriteJSON writes a value as indented JSON.
func WriteJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// WriteObjects writes objects as oc apply takes them: one YAML document each.
func WriteObjects[T any](w io.Writer, objects []T) error {
	for _, object := range objects {
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return err
		}
		if err := writeYAML(w, object); err != nil {
			return err
		}
	}
	return nil
}

func writeYAML(w io.Writer, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
