// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/pypi"
)

// indexTime bounds the questions to package indexes.
const indexTime = 6 * time.Second

// requirementsFiles collects what a run's requirements file, and those that it includes, name.
type requirementsFiles struct {
	all      []pypi.Requirement
	settings pypi.Settings
	// read is true if the file was read.
	read bool
}

// add takes the content of a file, and returns the paths of those that it includes.
func (f *requirementsFiles) add(name string, content []byte) (more []string) {
	all, settings, includes := pypi.Parse(string(content))
	f.read = true
	f.all = append(f.all, all...)
	f.settings = f.settings.With(settings)
	for _, include := range includes {
		if !strings.Contains(include, "://") && !path.IsAbs(include) {
			more = append(more, path.Join(path.Dir(name), include))
		}
	}
	return more
}

// check asks the indexes for what the files name. No answer is no error: the nodes may have another way to the index, and pip has the
// last word. pip itself cannot run here, because the image of the steps has no Python: packages that exclude each other pass.
func (f *requirementsFiles) check(ctx context.Context, p *probe) []Check {
	const name = "packages"
	if !f.read {
		return nil
	}
	if f.settings.Elsewhere {
		return []Check{newCheck(name, Unknown, "", "they name files or variables of the nodes, so no index was asked")}
	}
	named := f.settings.Named()
	settings, finished := f.settings, !p.building
	sure := named || !finished // in a finished image pip may have a configuration that names another index
	if finished && p.Registry != nil {
		if env, err := p.Registry.Environment(ctx, p.Request.Image); err == nil {
			settings = settings.FromEnvironment(env)
		}
	}
	if settings.Elsewhere {
		return []Check{newCheck(name, Unknown, "", "the training image configures pip, so no index was asked")}
	}
	sure = sure || settings.Named()
	asking, cancel := context.WithTimeout(ctx, indexTime)
	defer cancel()
	answer := pypi.Ask(asking, p.indexClient(), settings, f.all)
	return requirementsChecks(name, answer, sure)
}

func requirementsChecks(name string, answer pypi.Answer, sure bool) (checks []Check) {
	for _, problem := range answer.Problems {
		next := "correct it in the requirements; delete it if the training image has the package"
		if problem.NoName && !sure {
			checks = append(checks, newCheck(name, Warning, next, "%q: %s", problem.Requirement.Text, problem.Seen))
			continue
		}
		checks = append(checks, newCheck(name, Blocked, next, "%q: %s", problem.Requirement.Text, problem.Seen).because(fail.RequirementsFailed))
	}
	switch {
	case len(checks) > 0:
	case answer.Unknown > 0:
		why := ""
		if answer.Why != nil {
			why = ": " + oneLine(answer.Why.Error())
		}
		checks = []Check{newCheck(name, Unknown, "", "%d of %s have no answer%s", answer.Unknown,
			humanize.Count(answer.Found+answer.Unknown, "requirement"), why)}
	default:
		checks = []Check{newCheck(name, OK, "", "the index has %s, each in a version that is allowed; pip alone knows whether they fit together",
			humanize.Count(answer.Found, "requirement"))}
	}
	return checks
}

// indexClient reaches package indexes as the nodes do: by the cluster file's proxy, with the trusted certificates.
func (p *probe) indexClient() *http.Client {
	transport := command.Transport(p.CAFile)
	if proxy := p.file.Network.Proxy; proxy.HTTP != "" || proxy.HTTPS != "" {
		choose := (&httpproxy.Config{HTTPProxy: proxy.HTTP, HTTPSProxy: proxy.HTTPS, NoProxy: strings.Join(proxy.NoProxy, ",")}).ProxyFunc()
		transport.Proxy = func(r *http.Request) (*url.URL, error) { return choose(r.URL) }
	}
	return &http.Client{Transport: transport, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		const most = 5
		if len(via) > most {
			return fmt.Errorf("%d redirects: want at most %d", len(via), most)
		}
		return nil
	}}
}
