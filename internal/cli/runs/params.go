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

// PipelineTasks returns the names of the tasks of this version's pipeline, in its order.
func PipelineTasks(files fs.FS) []string {
	spec := newParams(files).pipeline.Spec
	return humanize.Each(slices.Concat(spec.Tasks, spec.Finally), func(t v1.PipelineTask) string { return t.Name })
}

func (p *params) addTo(flags *pflag.FlagSet) {
	for _, spec := range p.pipeline.Spec.Params {
		usage := param.Help(launch.Pipeline, spec.Name)
		value := &texts{kind: param.KindOf(spec.Name).Name(), list: spec.Type == v1.ParamTypeArray}
		if value.list {
			usage += "; may be repeated"
		}
		if spec.Default != nil && spec.Default.StringVal != "" && !strings.Contains(usage, "mlenv install sets") {
			usage += " (default: " + spec.Default.StringVal + ")"
		}
		// The flag's own default is empty: the installed pipeline may have another default.
		if flag := flags.VarPF(value, spec.Name, "", usage); value.kind == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
	flags.StringArrayVar(&p.others, "param", nil, "NAME=VALUE of any param of the installed pipeline; may be repeated")
}

// texts is a flag for a param. It keeps any text: launch checks the value when the installed pipeline is known, together with the other
// params.
type texts struct {
	kind   string
	list   bool
	values []string
}

// String implements pflag.Value.
func (t *texts) String() string { return strings.Join(t.values, ",") }

// Set implements pflag.Value.
func (t *texts) Set(value string) error {
	if !t.list {
		t.values = nil
	}
	t.values = append(t.values, value)
	return nil
}

// Type implements pflag.Value.
func (t *texts) Type() string {
	if t.list && t.kind == "string" {
		return "stringArray"
	}
	return t.kind
}

// values returns the params on the command line, by flags and by --param.
func (p *params) values(cmd *cobra.Command) (map[string][]string, error) {
	values, err := launch.ParseValues(p.others)
	problems := []error{err}
	for _, spec := range p.pipeline.Spec.Params {
		flag, byParam := cmd.Flags().Lookup(spec.Name), values[spec.Name]
		given, _ := flag.Value.(*texts)
		switch {
		case byParam != nil && flag.Changed:
			problems = append(problems, fmt.Errorf("--param %s and --%s: want one of them", spec.Name, spec.Name))
		case len(byParam) > 1 && !given.list:
			problems = append(problems, fmt.Errorf("--param %s is given %d times: want one", spec.Name, len(byParam)))
		case flag.Changed:
			values[spec.Name] = given.values
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
