package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// params are the flags that stand for the pipeline's params: each of the pipeline as
// this program knows it has one of its own name, and --param is for what an
// installed pipeline has beside these.
type params struct {
	pipeline *v1.Pipeline
	texts    map[string]*string
	lists    map[string]*[]string
	others   []string
}

// pipelineOf reads the pipeline out of the bundle.
func pipelineOf(files fs.FS) (*v1.Pipeline, error) {
	objects, err := bundle.Objects(files)
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if object.GetKind() != "Pipeline" || object.GetName() != launch.Pipeline {
			continue
		}
		var pipeline v1.Pipeline
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &pipeline); err != nil {
			return nil, fmt.Errorf("reading pipeline %s: %w", launch.Pipeline, err)
		}
		return &pipeline, nil
	}
	return nil, fmt.Errorf("looking for pipeline %s: the bundle has none", launch.Pipeline)
}

// addTo makes the flags.
func (p *params) addTo(flags *pflag.FlagSet) {
	p.texts, p.lists = map[string]*string{}, map[string]*[]string{}
	for _, spec := range p.pipeline.Spec.Params {
		// What is in backquotes would be the name of the flag's value.
		usage, _, _ := strings.Cut(strings.TrimSpace(spec.Description), "\n")
		usage = strings.ReplaceAll(usage, "`", "'")
		switch {
		case spec.Type == v1.ParamTypeArray:
			p.lists[spec.Name] = flags.StringArray(spec.Name, nil, usage+" Can be given several times.")
		case spec.Default == nil:
			p.texts[spec.Name] = flags.String(spec.Name, "", usage)
		default:
			// The default is shown only: what is not given is the installed pipeline's, which may be another.
			p.texts[spec.Name] = flags.String(spec.Name, "", defaulted(usage, spec.Default.StringVal))
		}
	}
	flags.StringArrayVar(&p.others, "param", nil, "NAME=VALUE of any param of the installed pipeline, as the flags of their names. Can be given several times.")
}

func defaulted(usage, value string) string {
	if value == "" || strings.HasPrefix(value, "registry.invalid/") {
		return usage
	}
	return usage + " (default: " + value + ", or what was installed)"
}

// values are those that were given, by flags and by --param.
func (p *params) values(cmd *cobra.Command) (map[string][]string, error) {
	values := map[string][]string{}
	for name, text := range p.texts {
		if cmd.Flags().Changed(name) {
			values[name] = []string{*text}
		}
	}
	for name, list := range p.lists {
		if cmd.Flags().Changed(name) {
			values[name] = *list
		}
	}
	var problems []error
	byParam := map[string][]string{}
	for _, other := range p.others {
		name, value, ok := strings.Cut(other, "=")
		switch {
		case !ok || name == "":
			problems = append(problems, fmt.Errorf("--param %q: want NAME=VALUE", other))
		case values[name] != nil:
			problems = append(problems, fmt.Errorf("--param %s and --%s: want one of them", name, name))
		default:
			byParam[name] = append(byParam[name], value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byParam)) {
		if len(byParam[name]) > 1 && p.texts[name] != nil {
			problems = append(problems, fmt.Errorf("--param %s is given %d times: want it once", name, len(byParam[name])))
		}
	}
	maps.Copy(values, byParam)
	return values, errors.Join(problems...)
}
