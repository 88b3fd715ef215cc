package launch

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	imagename "github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// kind is the type of a param. Its error names the value and what it should be.
type kind func(value string) error

// kinds has the type of every param of the pipelines, for mlenv, the Action, schedules and preflight.
var kinds = map[string]kind{
	"build-args":       matches(`^[A-Za-z_][A-Za-z0-9_.-]*=`, "KEY=VALUE"),
	"build-timeout":    duration,
	"check-fabric":     oneOf("true", "false"),
	"cluster":          subdomain("the name of an installed cluster file"),
	"datasets-size":    size,
	"deepspeed-config": matches(`^[^-]`, "the path of a DeepSpeed configuration"),
	"env":              variable,
	"env-secret":       subdomain("the name of a Secret, or none"),
	"exclude-nodes":    nodeNames,
	"fabric-bandwidth": oneOf("warn", "fail"),
	"flavour":          matches(`^\w[\w.-]{0,127}$`, "a flavour, as in pytorch-2.9-numpy2"),
	"git-secret":       subdomain("the name of a Secret, or none"),
	"gpus-per-node":    count,
	"hang-timeout":     hangTimeout,
	"image":            image,
	"keep":             oneOf("true", "false"),
	"keep-for":         duration,
	"launcher":         launcher,
	"lfs":              oneOf("true", "false"),
	"max-restarts":     matches(`^[1-9]?[0-9]$`, "a number from 0 to 99"),
	"mode":             oneOf("auto", string(objects.TCP), string(objects.RDMA)),
	"name":             environment,
	"nodes":            count,
	"notify":           subdomain("the name of a Secret, or none"),
	"on-busy":          oneOf("fail", "wait"),
	"on-change":        oneOf("fail", "recreate"),
	"pull-secret":      subdomain("the name of a Secret, or none"),
	"queue":            subdomain("the name of a LocalQueue"),
	"ranks-per-node":   count,
	"repo-url":         repository,
	"requirements":     file,
	"revision":         matches(`^([^-\s]\S*)?$`, "a branch, tag or commit"),
	"routes":           oneOf("true", "false"),
	"script":           matches(`^[^-]`, "the path of a script"),
	"script-args":      nil,
	"services":         nil, // provision reports the names of all services
	"start-timeout":    duration,
	"steps-image":      image,
	"storage":          oneOf(string(cluster.SharedStorage), string(cluster.NodeStorage), string(cluster.AutoStorage)),
	"submodules":       oneOf("true", "false"),
	"timeout":          duration,
	"workspace-size":   size,
}

// check returns the mistakes in the values of a param.
func check(spec v1.ParamSpec, values []string) (mistakes []error) {
	for _, value := range values {
		if err := Check(spec, value); err != nil {
			mistakes = append(mistakes, fmt.Errorf("param %s: %w", spec.Name, err))
		}
	}
	return mistakes
}

// Check returns the mistake in a value of a param, or in an item of an array. The default is valid, such as none for a
// Secret, and so is every value of a param that only the installed pipeline has.
func Check(spec v1.ParamSpec, value string) error {
	of := kinds[spec.Name]
	if of == nil || spec.Type != v1.ParamTypeArray && spec.Default != nil && value == spec.Default.StringVal {
		return nil
	}
	return of(value)
}

func want(valid bool, value, want string) error {
	if valid {
		return nil
	}
	return fmt.Errorf("%q: want %s", value, want)
}

func oneOf(allowed ...string) kind {
	return func(value string) error {
		return want(slices.Contains(allowed, value), value, humanize.List(allowed, "or"))
	}
}

func matches(pattern, names string) kind {
	compiled := regexp.MustCompile(pattern)
	return func(value string) error { return want(compiled.MatchString(value), value, names) }
}

func subdomain(names string) kind {
	return func(value string) error { return want(len(validation.IsDNS1123Subdomain(value)) == 0, value, names) }
}

func nodeNames(value string) error {
	for name := range strings.SplitSeq(value, ",") {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return want(false, value, "names of Kubernetes nodes with commas between them and no spaces")
		}
	}
	return nil
}

func hangTimeout(value string) error {
	d, err := time.ParseDuration(value)
	return want(value == "auto" || err == nil && d >= 0, value, "auto, 0 for never, or a duration such as 20m")
}

func duration(value string) error {
	d, err := time.ParseDuration(value)
	return want(err == nil && d > 0, value, "a duration such as 40m or 24h")
}

// count accepts what the steps' flags accept.
func count(value string) error {
	n, err := strconv.ParseInt(value, 0, 32)
	return want(err == nil && n >= 0, value, "a number, or 0 for the default")
}

func size(value string) error {
	var q cluster.Quantity
	if err := q.UnmarshalText([]byte(value)); err != nil {
		return fmt.Errorf("%q: %w", value, err)
	}
	return want(q.Sign() > 0, value, "a size such as 100Gi")
}

func image(value string) error {
	_, err := imagename.ParseReference(value)
	return want(err == nil, value, "an image, as in registry.example.com/team/training:tag")
}

func environment(value string) error { return want(objects.ValidName(value), value, objects.NameRule) }

func file(value string) error {
	return want(filepath.IsLocal(value), value, "the path of a file in the repository")
}

func launcher(value string) error { return agent.Launcher(value).Check() }

func variable(value string) error {
	_, _, err := agent.ParseVariable(value)
	return err
}

// repository accepts what sync-repo does. The URL may have a password: CheckURL does not show it.
func repository(value string) error {
	if git.IsFolder(value) {
		return nil
	}
	return git.CheckURL(value)
}
