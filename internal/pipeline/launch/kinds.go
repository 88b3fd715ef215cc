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

var (
	count    = valid(isCount, "a number, or 0 for the default")
	duration = valid(isDuration, "a duration such as 40m or 24h")
	image    = valid(isImage, "an image, as in registry.example.com/team/training:tag")
	secret   = subdomain("the name of a Secret, or none")
	truth    = oneOf("true", "false")
)

// kinds has the type of every param of the pipelines, for mlenv, the Action, schedules and preflight.
var kinds = map[string]kind{
	"build-args":       matches(`^[A-Za-z_][A-Za-z0-9_.-]*=`, "KEY=VALUE"),
	"build-timeout":    duration,
	"check-fabric":     truth,
	"cluster":          subdomain("the name of an installed cluster file"),
	"datasets-size":    size,
	"deepspeed-config": matches(`^[^-]`, "the path of a DeepSpeed configuration"),
	"env":              variable,
	"env-secret":       secret,
	"exclude-nodes":    valid(areSubdomains, "names of Kubernetes nodes with commas between them and no spaces"),
	"fabric-bandwidth": oneOf("warn", "fail"),
	"flavour":          matches(`^\w[\w.-]{0,127}$`, "a flavour, as in pytorch-2.9-numpy2"),
	"git-secret":       secret,
	"gpus-per-node":    count,
	"hang-timeout":     valid(isHangTimeout, "auto, 0 for never, or a duration such as 20m"),
	"image":            image,
	"keep":             truth,
	"keep-for":         duration,
	"launcher":         launcher,
	"lfs":              truth,
	"max-restarts":     matches(`^[1-9]?[0-9]$`, "a number from 0 to 99"),
	"mode":             oneOf("auto", string(objects.TCP), string(objects.RDMA)),
	"name":             valid(objects.ValidName, objects.NameRule),
	"nodes":            count,
	"notify":           secret,
	"on-busy":          oneOf("fail", "wait"),
	"on-change":        oneOf("fail", "recreate"),
	"pull-secret":      secret,
	"queue":            subdomain("the name of a LocalQueue"),
	"queue-priority":   subdomain("the name of a WorkloadPriorityClass"),
	"ranks-per-node":   count,
	"repo-url":         repository,
	"requirements":     valid(filepath.IsLocal, "the path of a file in the repository"),
	"revision":         matches(`^([^-\s]\S*)?$`, "a branch, tag or commit"),
	"routes":           truth,
	"script":           valid(isScript, "the path of a script, or -m PACKAGE.MODULE"),
	"script-args":      nil,
	"services":         nil, // provision reports the names of all services
	"start-timeout":    duration,
	"steps-image":      image,
	"storage":          oneOf(string(cluster.SharedStorage), string(cluster.NodeStorage), string(cluster.AutoStorage)),
	"submodules":       truth,
	"timeout":          duration,
	"workspace-size":   size,

	"require-rendezvous": oneOf("warn", "fail"),
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

// valid is the type of the values for which is returns true; want describes them.
func valid(is func(value string) bool, want string) kind {
	return func(value string) error {
		if is(value) {
			return nil
		}
		return fmt.Errorf("%q: want %s", value, want)
	}
}

func oneOf(allowed ...string) kind {
	return valid(func(value string) bool { return slices.Contains(allowed, value) }, humanize.List(allowed, "or"))
}

func matches(pattern, want string) kind { return valid(regexp.MustCompile(pattern).MatchString, want) }

func subdomain(want string) kind { return valid(isSubdomain, want) }

func isSubdomain(value string) bool { return len(validation.IsDNS1123Subdomain(value)) == 0 }

func areSubdomains(value string) bool {
	return !slices.ContainsFunc(strings.Split(value, ","), func(name string) bool { return !isSubdomain(name) })
}

func isHangTimeout(value string) bool {
	d, err := time.ParseDuration(value)
	return value == "auto" || err == nil && d >= 0
}

func isDuration(value string) bool {
	d, err := time.ParseDuration(value)
	return err == nil && d > 0
}

func isScript(value string) bool {
	return value != "" && (value[0] != '-' || agent.Module(value) != "")
}

// isCount accepts what the steps' flags accept.
func isCount(value string) bool {
	n, err := strconv.ParseInt(value, 0, 32)
	return err == nil && n >= 0
}

func isImage(value string) bool {
	_, err := imagename.ParseReference(value)
	return err == nil
}

func size(value string) error {
	var q cluster.Quantity
	if err := q.UnmarshalText([]byte(value)); err != nil {
		return fmt.Errorf("%q: %w", value, err)
	}
	return valid(func(string) bool { return q.Sign() > 0 }, "a size such as 100Gi")(value)
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
	err := git.CheckURL(value)
	if scheme, _, _ := strings.Cut(value, ":"); err != nil && (scheme == value || scheme == "file") {
		err = fmt.Errorf("%w; mlenv run takes a folder as ./DIR or an absolute path", err)
	}
	return err
}
