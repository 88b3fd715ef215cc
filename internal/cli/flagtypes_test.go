// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/spf13/pflag"
)

// manyTypes are the flags whose values differ between commands, with the reason.
var manyTypes = map[string]string{
	"mode":    "check-fabric is told the transport that it should find, which auto is not",
	"on-busy": "a schedule skips a night, which is no failure",
	"output":  "each command has its own formats",
}

// TestFlagTypes: a flag has one type in all commands. A boolean is true without a value, and no other flag has an optional value: one that
// took the word behind it would swallow the next flag.
func TestFlagTypes(t *testing.T) {
	types, differ := map[string]string{}, map[string]bool{}
	for _, cmd := range shown(newRoot()) {
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			kind := flag.Value.Type()
			if other, known := types[flag.Name]; known && other != kind {
				if differ[flag.Name] = true; manyTypes[flag.Name] == "" {
					t.Errorf("%s: --%s is of type %s, elsewhere of %s", cmd.CommandPath(), flag.Name, kind, other)
				}
			}
			types[flag.Name] = kind
			if optional := flag.NoOptDefVal; (kind == "bool") != (optional == "true") || kind != "bool" && optional != "" {
				t.Errorf("%s: --%s is of type %s, and %q without a value", cmd.CommandPath(), flag.Name, kind, optional)
			}
		})
	}
	for name := range manyTypes {
		if !differ[name] {
			t.Errorf("manyTypes has --%s, which has one type", name)
		}
	}
}
