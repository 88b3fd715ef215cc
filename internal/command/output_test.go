// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

type tree struct {
	Name string `json:"name"`
}

func TestOutput(t *testing.T) {
	for _, test := range []struct {
		name, args, want, err string
	}{
		{"default", "", "two trees\n", ""},
		{"text", "--output=text", "two trees\n", ""},
		{"json", "-o json", "[\n  {\n    \"name\": \"oak\"\n  },\n  {\n    \"name\": \"elm\"\n  }\n]\n", ""},
		{"yaml", "--output yaml", "- name: oak\n- name: elm\n", ""},
		{"name", "-o=name", "oak\nelm\n", ""},
		{"unknown", "-o xml", "", `invalid argument "xml" for "-o, --output" flag: want text, json, yaml or name`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var output OutputFlag
			flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
			output.AddTo(flags, Text, JSON, YAML, Names)
			if err := flags.Parse(strings.Fields(test.args)); fmt.Sprint(err) != test.err && (err != nil || test.err != "") {
				t.Fatalf("got error %v, want %q", err, test.err)
			} else if err != nil {
				return
			}
			var out strings.Builder
			err := output.Print(&out, []tree{{"oak"}, {"elm"}}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, "two trees")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What programs read begins with its version, whether it is one object or a list.
func TestOutputIsVersioned(t *testing.T) {
	for _, tc := range []struct {
		value any
		want  string
	}{
		{struct {
			Name string `json:"name"`
		}{"a"}, `{"apiVersion":"mlenv/v1","kind":"Thing","name":"a"}`},
		{struct{}{}, `{"apiVersion":"mlenv/v1","kind":"Thing"}`},
		{[]string{"a"}, `{"apiVersion":"mlenv/v1","kind":"Thing","items":["a"]}`},
		{[]string(nil), `{"apiVersion":"mlenv/v1","kind":"Thing","items":[]}`},
	} {
		for _, format := range []Format{JSON, YAML} {
			var out bytes.Buffer
			if err := (&OutputFlag{format: format}).PrintAs("Thing", &out, tc.value, nil); err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := errors.Join(yaml.Unmarshal(out.Bytes(), &got), json.Unmarshal([]byte(tc.want), &want)); err != nil ||
				!reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %s, %v; want %s", format, out.String(), err, tc.want)
			}
		}
	}
}
