// SPDX-License-Identifier: Apache-2.0

package param

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	imagename "github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// Effect is what a finding does to a run.
type Effect string

// The effects.
const (
	Warn Effect = "warn"
	Fail Effect = "fail"
)

// The kinds.
var (
	BuildArg         = matches(`^[A-Za-z_][A-Za-z0-9_.-]*=`, "KEY=VALUE")
	Consequence      = OneOf(Warn, Fail)
	checkMode        = OneOf(agent.TCP, agent.RDMA).Wanting("tcp or rdma, or nothing for the environment's")
	checkTime        = AtLeast(20*time.Second, "at least 20s, because torch takes some of it to start")
	Count            = number("int", "a number, or 0 for the default", parseInt, func(n int) bool { return n >= 0 })
	DebugRank        = number("int", "a rank from 0, or -1 for none", parseInt, func(n int) bool { return n >= -1 })
	DeepSpeedConfig  = matches(`^[^-]`, "the path of a DeepSpeed configuration")
	Duration         = number("duration", "a duration such as 40m or 24h", time.ParseDuration, func(d time.Duration) bool { return d > 0 })
	Flavour          = matches(`^\w[\w.-]{0,127}$`, "a flavour, as in pytorch-2.9-numpy2")
	GPUs             = number("int", "a number, or nothing for the default", parseGPUs, func(n *int) bool { return n == nil || *n >= 0 })
	IdleTimeout      = idleTimeout()
	Image            = conditionKind(isImage, "an image, as in registry.example.com/team/training:tag")
	Launcher         = launchers()
	Mode             = OneOf(agent.Auto, agent.RDMA, agent.TCP)
	Name             = conditionKind(objects.ValidName, objects.NameRule)
	OnBusy           = OneOf("fail", "wait")
	OnChange         = OneOf("fail", "recreate")
	Queue            = subdomain("the name of a LocalQueue")
	QueuePriority    = subdomain("the name of a WorkloadPriorityClass")
	Repository       = textKind[string](checkRepository)
	Requirements     = conditionKind(filepath.IsLocal, "the path of a file in the repository")
	Restarts         = restarts()
	Revision         = matches(`^([^-\s]\S*)?$`, "a branch, tag or commit")
	Script           = conditionKind(isScript, "the path of a script, or -m PACKAGE.MODULE")
	Size             = textKind[string](checkSize)
	StopGrace        = stopGrace()
	Storage          = OneOf(cluster.SharedStorage, cluster.NodeStorage, cluster.AutoStorage)
	Truth            = boolean()
	Variable         = textKind[string](checkVariable)
	KubernetesNodes  = nodeNames()
	installedCluster = subdomain("the name of an installed cluster file")
	secret           = subdomain("the name of a Secret, or none")
	hangTimeout      = textKind[string](checkHangTimeout).withName("auto|duration")
	rule             = textKind[string](checkRule).withName("rule")
	anything         = textKind[string](func(string) error { return nil })
)

// Any is a kind of any type.
type Any interface {
	Name() string
	Check(text string) error
}

func matches(pattern, want string) *Kind[string] {
	return conditionKind(regexp.MustCompile(pattern).MatchString, want)
}

func subdomain(want string) *Kind[string] { return conditionKind(isSubdomain, want) }

func isSubdomain(text string) bool { return len(validation.IsDNS1123Subdomain(text)) == 0 }

// nodeNames has no names for "".
func nodeNames() *Kind[[]string] {
	return &Kind[[]string]{"strings", func(text string) (names []string, err error) {
		if text == "" {
			return nil, mistake(false, text, "names of Kubernetes nodes")
		}
		for name := range strings.SplitSeq(text, ",") {
			names = append(names, name)
			if !isSubdomain(name) {
				err = mistake(false, text, "names of Kubernetes nodes with commas between them and no spaces")
			}
		}
		return names, err
	}}
}

func launchers() *Kind[agent.Launcher] {
	kind := OneOf(agent.AutoLauncher, agent.DeepSpeed, agent.Torchrun, agent.Command, agent.DeepSpeedLauncher, agent.TorchrunLauncher)
	// Its own error knows launchers of others.
	kind.parse = func(text string) (agent.Launcher, error) { return agent.Launcher(text), agent.Launcher(text).Check() }
	return kind
}

func restarts() *Kind[int] {
	return number("int", fmt.Sprintf("a number from 0 to %d", agent.MaxAttempts-1), parseInt,
		func(n int) bool { return n >= 0 && n < agent.MaxAttempts })
}

func stopGrace() *Kind[time.Duration] {
	return number("duration", fmt.Sprintf("a duration from 1s to %s, such as 5m", agent.MaxStopGrace), time.ParseDuration,
		func(d time.Duration) bool { return d >= time.Second && d <= agent.MaxStopGrace })
}

// boolean accepts no other spelling: Tekton compares with true.
func boolean() *Kind[bool] {
	return &Kind[bool]{"bool", func(text string) (bool, error) {
		return text == "true", mistake(text == "true" || text == "false", text, "true or false")
	}}
}

// idleTimeout has the text itself, because "" is the cluster file's.
func idleTimeout() *Kind[string] {
	return conditionKind(func(text string) bool {
		d, err := time.ParseDuration(text)
		return err == nil && d >= 0
	}, "a duration such as 2h, or 0 for never").withName("duration")
}

// AtLeast returns the kind of the durations from least on; want describes them.
func AtLeast(least time.Duration, want string) *Kind[time.Duration] {
	return number("duration", want, time.ParseDuration, func(d time.Duration) bool { return d >= least })
}

// parseInt accepts what pflag's own flags do.
func parseInt(text string) (int, error) {
	n, err := strconv.ParseInt(text, 0, 32)
	return int(n), err
}

// parseGPUs returns nil for "", because 0 is a number of GPUs that an environment may have.
func parseGPUs(text string) (*int, error) {
	if text == "" {
		return nil, nil
	}
	n, err := parseInt(text)
	return &n, err
}

func isScript(text string) bool { return text != "" && (text[0] != '-' || agent.Module(text) != "") }

func isImage(text string) bool {
	_, err := imagename.ParseReference(text)
	return err == nil
}

func checkSize(text string) error {
	var q cluster.Quantity
	if err := q.UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	return mistake(q.Sign() > 0, text, "a size such as 100Gi")
}

func checkVariable(text string) error {
	_, _, err := agent.ParseVariable(text)
	return err
}

// checkRepository accepts what sync-repo does. The URL may have a password: CheckURL does not show it.
func checkRepository(text string) error {
	if git.IsFolder(text) {
		return nil
	}
	err := git.CheckURL(text)
	if scheme, _, _ := strings.Cut(text, ":"); err != nil && (scheme == text || scheme == "file") {
		err = fmt.Errorf("%w; mlenv run takes a folder as ./DIR or an absolute path", err)
	}
	return err
}

func checkRule(text string) error {
	_, err := rules.Parse(text)
	return err
}

func checkHangTimeout(text string) error {
	if _, _, err := ParseHangTimeout(text); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	return nil
}

// ParseHangTimeout reads how long no rank may print or measure anything. A bound is explicit unless text is auto; 0 is never.
func ParseHangTimeout(text string) (bound time.Duration, explicit bool, err error) {
	if text == "auto" {
		return 0, false, nil
	}
	if bound, err = time.ParseDuration(text); err != nil || bound < 0 {
		return 0, false, errors.New("want auto, 0 for never, or a duration such as 20m")
	}
	return bound, true, nil
}
