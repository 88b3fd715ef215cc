// SPDX-License-Identifier: Apache-2.0

package action

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// inputsVariable holds all inputs as one JSON object, because some shells drop variables with a hyphen in their name.
const inputsVariable = "MLENV_INPUTS"

// Inputs that are not params of the pipeline.
const (
	serverInput      = "server"
	tokenInput       = "token"
	audienceInput    = "oidc-audience"
	authorityInput   = "certificate-authority"
	kubeconfigInput  = "kubeconfig"
	namespaceInput   = "namespace"
	accountInput     = "service-account"
	clusterFileInput = "cluster-file"
	compareInput     = "compare-with"
	versionInput     = "version"
)

// ownInputs lists them in the order of action.yml.
func ownInputs() []string {
	return []string{
		serverInput, tokenInput, audienceInput, authorityInput, kubeconfigInput, namespaceInput, accountInput, clusterFileInput, compareInput,
		versionInput,
	}
}

// inputs are those that are not empty.
type inputs map[string]string

// readInputs reads them from the environment of a runner's step. With an error it returns those that it could read, for
// their secrets.
func readInputs(getenv func(string) string) (inputs, error) {
	var all inputs
	if err := json.Unmarshal([]byte(getenv(inputsVariable)), &all); err != nil {
		return all, fail.Becausef(fail.InvalidInput, "reading the action's inputs from $%s: %w: want a JSON object of strings, as action.yml "+
			"writes it", inputsVariable, err)
	}
	maps.DeleteFunc(all, func(_, value string) bool { return strings.TrimSpace(value) == "" })
	if token := all[tokenInput]; token != "" {
		all[tokenInput] = strings.TrimSpace(token)
	}
	return all, nil
}

// shortestLine of a kubeconfig that is masked: hiding every "users:" would make the log unreadable.
const shortestLine = 8

// secrets returns the parts of the inputs that no log may show. A message may quote a kubeconfig that cannot be read, so all
// its lines are secrets.
func (in inputs) secrets() []string {
	secrets := []string{in[tokenInput]}
	for _, input := range []string{serverInput, "repo-url"} {
		if address, err := url.Parse(in[input]); err == nil {
			password, _ := address.User.Password()
			secrets = append(secrets, password)
		}
	}
	config, err := clientcmd.Load([]byte(in[kubeconfigInput]))
	if err != nil {
		for line := range strings.Lines(in[kubeconfigInput]) {
			if line = strings.TrimSpace(line); len(line) >= shortestLine {
				secrets = append(secrets, line)
			}
		}
	} else {
		for _, user := range config.AuthInfos {
			secrets = append(secrets, user.Token, user.Password, string(user.ClientKeyData))
			if user.AuthProvider != nil {
				secrets = slices.AppendSeq(secrets, maps.Values(user.AuthProvider.Config))
			}
		}
	}
	return slices.DeleteFunc(secrets, func(secret string) bool { return strings.TrimSpace(secret) == "" })
}

type settings struct {
	config *rest.Config
	// audience is for whom the ID tokens are made that replace a token, "" for none.
	audience string
	// base is the branch or run to compare with, "" for none.
	base      string
	namespace string
	account   string
	// checkout is true if the run trains the workflow's own repository.
	checkout bool
	// params are the pipeline's; launch checks them.
	params          map[string]string
	clusterProblems cluster.Problems
}

// settings checks the inputs in the environment of a workflow. Errors: InvalidInput with every mistake.
func (in inputs) settings(getenv func(string) string) (s settings, err error) {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	s = settings{
		account: in[accountInput], params: maps.Clone(in),
		audience: strings.TrimSpace(in[audienceInput]), base: strings.TrimSpace(in[compareInput]),
	}
	for _, name := range ownInputs() {
		delete(s.params, name)
	}
	var contextNamespace string
	switch {
	case in[kubeconfigInput] != "" && in[serverInput] != "":
		wrong("inputs kubeconfig and server: both are given: want one of them")
	case in[kubeconfigInput] != "" && s.audience != "":
		wrong("inputs kubeconfig and oidc-audience: both are given: want input server with oidc-audience")
	case in[kubeconfigInput] != "":
		if s.config, contextNamespace, err = fromKubeconfig(in[kubeconfigInput]); err != nil {
			wrong("input kubeconfig: %w: want the content of a kubeconfig", err)
		}
	case in[serverInput] == "":
		wrong("inputs server and kubeconfig: neither is given: want the API server's URL and a token, or a kubeconfig")
	default:
		// Without a scheme the client would use http, and send the token in clear text.
		if !strings.HasPrefix(in[serverInput], "https://") {
			wrong("input server %q: want a URL as https://api.example.com:6443", in[serverInput])
		}
		switch {
		case s.audience != "" && in[tokenInput] != "":
			wrong("inputs token and oidc-audience: both are given: want one of them")
		case s.audience != "" && getenv("ACTIONS_ID_TOKEN_REQUEST_URL") == "":
			wrong("input oidc-audience %q: GitHub offers no ID token to this job: want permissions: {id-token: write} in the workflow; "+
				"those of forks get none", s.audience)
		case s.audience == "" && in[tokenInput] == "":
			wrong("input token: it is empty: want a token for %s, or oidc-audience; GitHub does not pass the repository's secrets to workflows "+
				"of forks",
				in[serverInput])
		}
		s.config = &rest.Config{Host: in[serverInput], BearerToken: in[tokenInput],
			TLSClientConfig: rest.TLSClientConfig{CAData: []byte(in[authorityInput])}}
	}
	if path := in[clusterFileInput]; path != "" {
		content, err := claimfile.Read(filepath.Join(getenv("GITHUB_WORKSPACE"), path), 1<<20)
		var file cluster.File
		if err == nil {
			file, err = cluster.Load(path, content)
		}
		if err != nil && !errors.As(err, &s.clusterProblems) {
			wrong("input cluster-file: %w", err)
		} else if err != nil {
			wrong("input cluster-file: %s:\n%w", humanize.Count(len(s.clusterProblems), "mistake"), err)
		}
		s.namespace = file.Cluster.Namespace
		if file.Cluster.Name != "" {
			s.params["cluster"] = cmp.Or(s.params["cluster"], file.Cluster.Name)
		}
	}
	s.namespace = cmp.Or(in[namespaceInput], s.namespace, contextNamespace)
	if s.namespace == "" && len(problems) == 0 {
		wrong("input namespace: it is empty, and neither a cluster file nor a kubeconfig names one: want the namespace that mlenv install was " +
			"run for")
	}
	s.useCheckout(getenv)
	if len(problems) > 0 {
		return s, fail.Because(fail.InvalidInput, errors.Join(problems...))
	}
	return s, nil
}

// useCheckout makes the run train from the workflow's own commit, unless an input names a repository.
func (s *settings) useCheckout(getenv func(string) string) {
	if s.params["repo-url"] != "" || getenv("GITHUB_REPOSITORY") == "" {
		return
	}
	s.checkout = true
	s.params["repo-url"] = getenv("GITHUB_SERVER_URL") + "/" + getenv("GITHUB_REPOSITORY") + ".git"
	s.params["revision"] = cmp.Or(s.params["revision"], getenv("GITHUB_SHA"))
}

func fromKubeconfig(content string) (config *rest.Config, namespace string, err error) {
	client, err := clientcmd.NewClientConfigFromBytes([]byte(content))
	if err != nil {
		return nil, "", err
	}
	if config, err = client.ClientConfig(); err != nil {
		return nil, "", err
	}
	// ClientConfig.Namespace would return "default" instead of "".
	raw, err := client.RawConfig()
	if err != nil {
		return nil, "", err
	}
	if current := raw.Contexts[raw.CurrentContext]; current != nil {
		namespace = current.Namespace
	}
	return config, namespace, nil
}
