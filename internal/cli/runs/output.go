package runs

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// output is how something is shown: table for people, json or yaml for machines.
type output string

func (o *output) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *output) Type() string { return "table|json|yaml" }

// Set implements pflag.Value.
func (o *output) Set(s string) error {
	if s != "table" && s != "json" && s != "yaml" {
		return fmt.Errorf("want table, json or yaml")
	}
	*o = output(s)
	return nil
}

func (o *output) addTo(flags *pflag.FlagSet) {
	*o = "table"
	flags.VarP(o, "output", "o", "table for people, json or yaml for machines")
}

// write shows a value, or lets table do it.
func (o *output) write(out io.Writer, value any, table func() error) error {
	switch *o {
	case "json":
		return step.WriteJSON(out, value)
	case "yaml":
		text, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	return table()
}
