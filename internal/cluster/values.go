// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/invopop/jsonschema"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Quantity is an amount in Kubernetes' notation: bytes as in "128Gi" or "1T", processors as in "32" or "500m".
type Quantity struct {
	resource.Quantity
	// Given reports whether a file has the amount: false for a default.
	Given bool
}

// MustParseQuantity is for quantities in the program itself.
func MustParseQuantity(s string) Quantity { return Quantity{Quantity: resource.MustParse(s)} }

// boundedQuantity is a quantity that is quick to parse: 1e-999999999 takes minutes.
var boundedQuantity = regexp.MustCompile(`^[+-]?[0-9.]{1,30}(?:[kKMGTPEmnu]i?|[eE][+-]?[0-9]{1,2})?$`)

// ParseQuantity parses a quantity from an untrusted text. Quantities of 2^63 and more are errors: Kubernetes writes some of
// them as another number.
func ParseQuantity(text string) (resource.Quantity, error) {
	if !boundedQuantity.MatchString(text) {
		return resource.Quantity{}, resource.ErrFormatWrong
	}
	quantity, err := resource.ParseQuantity(text)
	if err == nil && (quantity.CmpInt64(math.MaxInt64) > 0 || quantity.CmpInt64(math.MinInt64) < 0) {
		err = resource.ErrFormatWrong
	}
	return quantity, err
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *Quantity) UnmarshalText(text []byte) error {
	parsed, err := ParseQuantity(string(text))
	if err == nil {
		q.Quantity, q.Given = parsed, true
		return nil
	}
	allowed := `want a number with at most one of the suffixes m, k, M, G, T, Ki, Mi, Gi, Ti, as in "100Gi"`
	// 128GB, 128GiB, 128 Gi and 128gi are common mistakes.
	guess := strings.ReplaceAll(strings.TrimSuffix(strings.TrimSuffix(string(text), "B"), "b"), " ", "")
	for _, suffix := range []string{"Ki", "Mi", "Gi", "Ti", "k", "M", "G", "T"} {
		if len(guess) > len(suffix) && strings.EqualFold(guess[len(guess)-len(suffix):], suffix) {
			guess = guess[:len(guess)-len(suffix)] + suffix
			break
		}
	}
	if _, err := ParseQuantity(guess); err == nil {
		return fmt.Errorf("not a quantity; did you mean %q? %s", guess, allowed)
	}
	return fmt.Errorf("not a quantity; %s", allowed)
}

// JSONSchema implements the schema generator's interface.
func (Quantity) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		OneOf:       []*jsonschema.Schema{{Type: "string", Pattern: `^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$`}, {Type: "number"}},
		Description: "a quantity, as in 128Gi",
	}
}

// Duration is a time in Go's notation, as in 2h or 90m; 0 needs no unit.
type Duration time.Duration

// String returns the time in Go's notation.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed < 0 {
		return errors.New("want a duration such as 2h or 90m, or 0")
	}
	*d = Duration(parsed)
	return nil
}

// JSONSchema implements the schema generator's interface.
func (Duration) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		OneOf:       []*jsonschema.Schema{{Type: "string", Title: "duration", Pattern: `^(0|([0-9]+(\.[0-9]+)?(h|m|s|ms))+)$`}, {Const: 0}},
		Description: "a duration, as in 2h",
	}
}

// List is several names in one string, separated by commas.
type List []string

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *List) UnmarshalText(text []byte) error {
	*l = nil
	for part := range strings.SplitSeq(string(text), ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			return fmt.Errorf("a name is empty; want names separated by single commas, as in \"mlx5_6,mlx5_7\"")
		}
		*l = append(*l, part)
	}
	return nil
}

// JSONSchema implements the schema generator's interface.
func (List) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Description: "names separated by commas"}
}

// NodeNames are names of nodes; nil is any node.
type NodeNames []string

// JSONSchema implements the schema generator's interface.
func (NodeNames) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		OneOf:       []*jsonschema.Schema{{Type: "array", Items: &jsonschema.Schema{Type: "string"}, UniqueItems: true}, {Type: "null"}},
		Description: "names of the nodes that may be used; null for any node with GPUs",
	}
}

// ResourceCounts are extended resources and how many of each a pod takes.
type ResourceCounts map[string]int

// JSONSchema implements the schema generator's interface.
func (ResourceCounts) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type:                 "object",
		AdditionalProperties: &jsonschema.Schema{Type: "integer", Minimum: "1"},
	}
}
