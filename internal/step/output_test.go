package step

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
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
