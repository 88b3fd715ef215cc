// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
)

// params are the flags for the pipeline's params: one flag for each param of this version's pipeline, and --param for
// params that only the installed pipeline has.
type params struct {
	pipeline *v1.Pipeline
	others   []string
}

// newParams reads the pipeline from the bundle. It panics on errors: the bundle is part of the program, and tested.
func newParams(files fs.FS) params {
	p := params{pipeline: &v1.Pipeline{}}
	if err := bundle.Read(files, "pipelines", launch.Pipeline, p.pipeline); err != nil {
		panic(err)
	}
	return p
}

// Tasks returns the names of the tasks of this version's pipeline, in its order.
func Tasks(files fs.FS) []string {
	spec := newParams(files).pipeline.Spec
	return humanize.Each(slices.Concat(spec.Tasks, spec.Finally), func(t v1.PipelineTask) string { return t.Name })
}

func (p *params) addTo(flags *pflag.FlagSet) {
	for _, spec := range p.pipeline.Spec.Params {
		// pflag takes text in backquotes for the name of the value.
		usage, _, _ := strings.Cut(strings.TrimSpace(spec.Description), "\n")
		usage = strings.ReplaceAll(usage, "`", "'")
		if spec.Type == v1.ParamTypeArray {
			flags.StringArray(spec.Name, nil, usage+" Can be given several times.")
			continue
		}
		if spec.Default != nil && spec.Default.StringVal != "" && !strings.HasPrefix(spec.Default.StringVal, "registry.invalid/") {
			usage += " (default: " + spec.Default.StringVal + ")"
		}
		// The flag's own default is empty: the installed pipeline may have another default.
		flags.Var(&text{kind: param.KindOf(spec.Name).Name()}, spec.Name, usage)
	}
	flags.StringArrayVar(&p.others, "param", nil, "NAME=VALUE of any param of the installed pipeline. Can be given several times.")
}

// text is a flag for a param. launch checks its value when the installed pipeline is known, together with the other params.
type text struct{ value, kind string }

// String implements pflag.Value.
func (t *text) String() string { return t.value }

// Set implements pflag.Value.
func (t *text) Set(value string) error {
	t.value = value
	return nil
}

// Type implements pflag.Value. A param takes numbers and durations as text.
func (t *text) Type() string {
	if strings.Contains(t.kind, "|") {
		return t.kind
	}
	return "string"
}

// values returns the params on the command line, by flags and by --param.
func (p *params) values(cmd *cobra.Command) (map[string][]string, error) {
	values, err := launch.ParseValues(p.others)
	problems := []error{err}
	for _, spec := range p.pipeline.Spec.Params {
		flag, byParam := cmd.Flags().Lookup(spec.Name), values[spec.Name]
		list, isList := flag.Value.(pflag.SliceValue)
		switch {
		case byParam != nil && flag.Changed:
			problems = append(problems, fmt.Errorf("--param %s and --%s: want one of them", spec.Name, spec.Name))
		case len(byParam) > 1 && !isList:
			problems = append(problems, fmt.Errorf("--param %s is given %d times: want one", spec.Name, len(byParam)))
		case flag.Changed && isList:
			values[spec.Name] = list.GetSlice()
		case flag.Changed:
			values[spec.Name] = []string{flag.Value.String()}
		}
	}
	return values, errors.Join(problems...)
}

// isFolder reports whether the repository is a folder of this machine.
func isFolder(values map[string][]string) bool {
	url := values["repo-url"]
	if len(url) != 1 {
		return false
	}
	return url[0] == "." || url[0] == ".." || strings.HasPrefix(url[0], "./") || strings.HasPrefix(url[0], "../") || filepath.IsAbs(url[0])
}

// expandHome replaces a leading ~ where the shell has left it, as in --script=~/model/train.py and in job files. In a
// repository ~ is a name as any other.
func expandHome(values map[string][]string) {
	home, err := os.UserHomeDir()
	if err != nil {
		return
	}
	for _, param := range append([]string{"repo-url"}, launch.FileParams()...) {
		if param != "repo-url" && !isFolder(values) {
			return
		}
		for i, value := range values[param] {
			if rest, ok := strings.CutPrefix(value, "~"); ok && (rest == "" || rest[0] == '/') {
				values[param][i] = home + rest
			}
		}
	}
}
