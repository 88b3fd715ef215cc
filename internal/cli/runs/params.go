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

// params are the flags for the pipeline's params: one flag for each param of this version's pipeline, and --param for
// params that only the installed pipeline has.
type params struct {
	pipeline *v1.Pipeline
	texts    map[string]*string
	lists    map[string]*[]string
	others   []string
}

// newParams reads the pipeline from the bundle. It panics on errors: the bundle is part of the program, and tested.
func newParams(files fs.FS) params {
	objects, err := bundle.Objects(files)
	p := params{pipeline: &v1.Pipeline{}}
	for _, object := range objects {
		if object.GetKind() == "Pipeline" && object.GetName() == launch.Pipeline {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, p.pipeline)
		}
	}
	if err != nil {
		panic(err)
	}
	return p
}

func (p *params) addTo(flags *pflag.FlagSet) {
	p.texts, p.lists = map[string]*string{}, map[string]*[]string{}
	for _, spec := range p.pipeline.Spec.Params {
		// pflag takes text in backquotes for the name of the value.
		usage, _, _ := strings.Cut(strings.TrimSpace(spec.Description), "\n")
		usage = strings.ReplaceAll(usage, "`", "'")
		switch {
		case spec.Type == v1.ParamTypeArray:
			p.lists[spec.Name] = flags.StringArray(spec.Name, nil, usage+" Can be given several times.")
		case spec.Default == nil:
			p.texts[spec.Name] = flags.String(spec.Name, "", usage)
		default:
			// The flag's own default is empty: the installed pipeline may have another default.
			p.texts[spec.Name] = flags.String(spec.Name, "", defaulted(usage, spec.Default.StringVal))
		}
	}
	flags.StringArrayVar(&p.others, "param", nil, "NAME=VALUE of any param of the installed pipeline. Can be given several times.")
}

func defaulted(usage, value string) string {
	if value == "" || strings.HasPrefix(value, "registry.invalid/") {
		return usage
	}
	return usage + " (default: " + value + ", unless the installed pipeline has another)"
}

// values are the params on the command line, by flags and by --param.
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
			problems = append(problems, fmt.Errorf("--param %s is given %d times: want one", name, len(byParam[name])))
		}
	}
	maps.Copy(values, byParam)
	return values, errors.Join(problems...)
}
